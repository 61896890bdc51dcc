"""The columns of studies: which data, cut into tasks in which way.

The paper's are settings of the shipped recipes. Ours take the recipes of one of those to other data, which
`--dataset` must ask for; their files are looked for below `$ZOFC_DATA`.
"""

from __future__ import annotations

from dataclasses import dataclass

PACS = ("data.source=parquet:pacs", "data.classes=7")
FOUR_TASKS = ("coda.per_task=25",)  # which a recipe of domains cannot count


@dataclass(frozen=True)
class Setting:
    """A data set in tasks."""

    name: str
    dataset: str
    recipes: str  # the setting whose recipes are taken
    changes: tuple[str, ...] = ()
    says: str = ""  # what it is, where its name does not say so


def _printed(name: str) -> Setting:
    return Setting(name, name.rpartition("-inc")[0], name)


def _ours(name: str, dataset: str, says: str, *changes: str) -> Setting:
    return Setting(name, dataset, "cifar100-inc10", changes, says)


SETTINGS = {
    setting.name: setting
    for setting in (
        _printed("cifar100-inc5"),
        _printed("cifar100-inc10"),
        _printed("imagenet-r-inc5"),
        _printed("imagenet-r-inc10"),
        _printed("domainnet-inc69"),
        _ours("caltech101-inc10", "caltech101", "101 uneven classes, eleven and then ten a task",
              "data.source=parquet:caltech101", "data.classes=101", "data.first=11"),
        _ours("pacs-styles", "pacs", "28 classes, each a class in one style; a task is a style", *PACS,
              "data.by=domain-class", *FOUR_TASKS),
        _ours("pacs-pooled", "pacs", "7 classes in all styles, three and then two a task", *PACS, "data.increment=2",
              "data.first=3"),
        _ours("pacs-domains", "pacs", "the same 7 classes in one more style a task, with shared labels", *PACS,
              "data.by=domain", *FOUR_TASKS),
    )
}  # fmt: skip
DATASETS = tuple(dict.fromkeys(setting.dataset for setting in SETTINGS.values()))
PAPERS = ("cifar100", "imagenet-r", "domainnet")  # those that a study takes unless told otherwise
OUR_SETTINGS = tuple(name for name, setting in SETTINGS.items() if setting.dataset not in PAPERS)
