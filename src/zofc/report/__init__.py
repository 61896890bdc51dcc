"""Tables, figures and the page: they read run folders and nothing else."""

from zofc.report.labels import labels
from zofc.report.page import write_report
from zofc.report.seeds import over_seeds
from zofc.report.tables import comparison_table, matrix_table, settings_table, summary_table

__all__ = [
    "comparison_table",
    "labels",
    "matrix_table",
    "over_seeds",
    "settings_table",
    "summary_table",
    "write_report",
]
