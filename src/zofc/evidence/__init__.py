"""Evidence: searches for learning rates, result grids, verdicts on the paper's claims, and the pages made from them.

Each command is run as `python -m zofc.evidence COMMAND`; `--help` lists them.
"""
