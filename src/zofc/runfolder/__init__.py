"""Run folders: every file of a run is named, written atomically, locked, read back and checked here.

The files are described in docs/reference/run-folder.md.
"""

from zofc.runfolder.create import create_run, new_run
from zofc.runfolder.files import ready_to_write, write_atomic
from zofc.runfolder.find import find_runs, newest_run, read_runs
from zofc.runfolder.run import Run, open_run

__all__ = [
    "Run",
    "create_run",
    "find_runs",
    "new_run",
    "newest_run",
    "open_run",
    "read_runs",
    "ready_to_write",
    "write_atomic",
]
