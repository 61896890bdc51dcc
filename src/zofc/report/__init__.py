"""Tables, figures and the page: they read run folders and nothing else."""

from zofc.report.page import write_report
from zofc.report.runs import RunRecord, find_runs, labels, read_runs
from zofc.report.seeds import over_seeds
from zofc.report.tables import compare, differences, show, summary

__all__ = [
    "RunRecord",
    "compare",
    "differences",
    "find_runs",
    "labels",
    "over_seeds",
    "read_runs",
    "show",
    "summary",
    "write_report",
]
