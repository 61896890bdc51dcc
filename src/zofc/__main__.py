"""`python -m zofc`, the same as `zofc`."""

from zofc.cli import main

main()
