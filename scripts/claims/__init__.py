"""The claims of the paper in our words, each with the place that makes it and the judge of our rows.

The order is the paper's argument: what zeroth order does to methods, what ZO-FC makes of it, what it consists of, why
it should forget less, what it costs. Sections, tables and figures are numbered as in the paper.
"""

from __future__ import annotations

from claims import costs, flatness, hybrid, orders, parts
from claims.lines import Claim, Group

CLAIMS: Group = {
    "Zeroth order in place of first order": orders.CLAIMS,
    "ZO-FC beside other methods": hybrid.CLAIMS,
    "What ZO-FC is made of": parts.CLAIMS,
    "Flatness": flatness.CLAIMS,
    "Cost": costs.CLAIMS,
}

__all__ = ["CLAIMS", "Claim", "Group"]
