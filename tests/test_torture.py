"""The tests of the torture harness, torture_tests.py, in a process of their own: the harness forks what it watches, and
a process that has run other tests is too large for its limits, and has threads that a fork does not survive."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).with_name("torture_tests.py")


def test_the_torture_harness_in_a_process_of_its_own(tmp_path: Path) -> None:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", f"--basetemp={tmp_path}"]
    done = subprocess.run([*command, str(TESTS)], env=own, cwd=TESTS.parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2_000:]
    assert " passed" in done.stdout
