"""`python -m zofc_device`."""

from zofc_device.cli import main

raise SystemExit(main())
