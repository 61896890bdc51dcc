"""What version 0.1 did where it had no key, so that its recipes and runs mean what they meant."""

from __future__ import annotations

from typing import Any

ADDED_LATER: dict[str, dict[str, Any]] = {  # keys younger than version 0.1, with what it did in all recipes or most
    "backbone": {"image_size": None},
    "head": {"init": "uniform", "scale": 1.0},
    "inflora": {"view": "test"},
    "l2p": {"init": "port"},
    "lae": {"frozen": None},
    "ridge": {"strength_from": "all", "orthogonal": False, "fallback": False, "keep_features": 256_000_000},
    "training": {
        "cache": "auto",
        "check_adapter": True,
        "calibrate": True,
        "fixed_batches": False,
        "keep_features": False,
        "journal": True,
        "divide": "images",
        "check_ranks": 100,
        "rank_wait": 10.0,
    },
}
ADDED_TO_GROUPS: dict[str, Any] = {
    "tasks": None,
    "length": "own",
    "steps": None,
}  # the same, in every group of `optimize`


def values_of_0_1(method: object, variant: object, head: object) -> dict[str, dict[str, Any]]:
    """What version 0.1 did where it had no key, for a method, its variant and a kind of head: its runs go on so."""
    values = {section: dict(keys) for section, keys in ADDED_LATER.items()}
    if (method, variant, head) == ("lae", "official", "linear"):
        values["head"]["init"] = "normal"
    if (method, variant) == ("lae", "zofc"):
        values["lae"]["frozen"] = False
    return values
