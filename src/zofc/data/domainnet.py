"""DomainNet (Peng et al., 2019): 345 classes in six styles, pooled, about 0.6 million images.

The published layout: `<domain>/<class>/<image>.jpg` with `<domain>_train.txt` and `<domain>_test.txt`, or in
their place CODA-Prompt's `domainnet_train.yaml` and `domainnet_test.yaml`.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import yaml

from zofc.data.file_list import FileList, expect_classes, open_file_lists, read_lines
from zofc.data.roots import find_root
from zofc.data.source import Source, SourceOptions, source
from zofc.errors import DataError, nearest
from zofc.limits import LIST_BYTES
from zofc.paths import why_unreadable

DOMAINNET = (
    "DomainNet, Peng et al., 'cleaned version': six archives and their train and test lists (https://ai.bu.edu/M3SDA)"
)
DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")

Entry = tuple[str, str, str, int]  # file, domain, class, label
YamlLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # half a million lines: C if it was built


@source("domainnet")
def domainnet(argument: str, options: SourceOptions) -> Source:
    """All six domains, or those named: `domainnet:real,sketch`."""
    domains = tuple(argument.split(",")) if argument else DOMAINS
    for domain in domains:
        if domain not in DOMAINS:
            raise DataError(f"data.source: domainnet has no domain '{domain}'{nearest(domain, DOMAINS)}")
    root = find_root("domainnet", options, DOMAINNET)
    train, test = (_entries(root, split, domains) for split in ("train", "test"))
    names = _class_names(train + test)
    index = {label: position for position, label in enumerate(names)}

    def listing(entries: list[Entry]) -> FileList:
        labels = np.array([index[label] for *_, label in entries], np.int64)
        styles = np.array([domains.index(domain) for _, domain, _, _ in entries], np.int64)
        return FileList(root, [file for file, *_ in entries], labels, styles)

    expect_classes("domainnet", len(names), 345, options.notice)
    name = f"domainnet:{argument}" if argument else "domainnet"
    return open_file_lists(name, tuple(names.values()), listing(train), listing(test), options, domains)


def _entries(root: Path, split: str, domains: tuple[str, ...]) -> list[Entry]:
    pooled = root / f"domainnet_{split}.yaml"
    if pooled.exists():
        return [entry for entry in _read_yaml(pooled) if entry[1] in domains]
    return [entry for domain in domains for entry in _read_list(root / f"{domain}_{split}.txt", domain)]


def _read_list(file: Path, domain: str) -> list[Entry]:
    if not file.exists():
        raise DataError(f"domainnet: {file} is missing; get {DOMAINNET}, or choose domains as in domainnet:real,sketch")
    entries = []
    for number, line in read_lines(file):
        path, _, label = line.rpartition(" ")
        entry = _entry(path, label, f"{file} line {number}")
        if entry[1] != domain:
            raise DataError(f"{file} line {number}: expected an image of {domain}, got '{line}'")
        entries.append(entry)
    return entries


def _read_yaml(file: Path) -> list[Entry]:
    if reason := why_unreadable(file, LIST_BYTES):
        raise DataError(f"cannot read the list {file}: {reason}")
    try:
        content = yaml.load(file.read_bytes(), Loader=YamlLoader)
        pairs = list(zip(content["data"], content["targets"], strict=True))
        if not all(isinstance(path, str) and isinstance(label, int | str) for path, label in pairs):
            raise ValueError("an entry is neither text nor a number")
    except (yaml.YAMLError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise DataError(f"{file}: expected the keys data and targets, two lists of one length ({error})") from error
    return [_entry(path, str(label), f"{file} entry {number}") for number, (path, label) in enumerate(pairs, 1)]


def _entry(path: str, label: str, where: str) -> Entry:
    """The last three parts of a path count: CODA-Prompt's begin with the folder its data lay in."""
    parts = PurePosixPath(path).parts[-3:]
    if len(parts) < 3 or {"..", "/"} & set(parts) or not label.isdecimal():
        raise DataError(f"{where}: expected DOMAIN/CLASS/image.jpg LABEL, got '{path} {label}'")
    return "/".join(parts), parts[0], parts[1], int(label)


def _class_names(entries: list[Entry]) -> dict[int, str]:
    """The name behind each label, by label; the lists must agree on it."""
    names: dict[int, str] = {}
    for file, _, name, label in entries:
        if names.setdefault(label, name) != name:
            raise DataError(f"domainnet: label {label} is '{names[label]}' and, at {file}, '{name}'")
    if len(set(names.values())) != len(names):
        raise DataError("domainnet: two labels carry the same class name; the lists do not belong together")
    if not names:
        raise DataError("domainnet: the lists are empty")
    return dict(sorted(names.items()))
