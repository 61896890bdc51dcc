"""Tables, figures and the page: they read run folders and nothing else."""

from zofc.report.labels import labels
from zofc.report.page import write_report
from zofc.report.seeds import over_seeds
from zofc.report.tables import compare, differences, show, summary

__all__ = [
    "compare",
    "differences",
    "labels",
    "over_seeds",
    "show",
    "summary",
    "write_report",
]
