"""The torture harness: seeded kills and hostile inputs for the command line, each try in a process of its own.

`make torture` runs it; docs/robustness.md says what it tries and what was found. It is not part of the package.
"""
