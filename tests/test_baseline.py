"""Behaviour of every method under every order, as version 0.1 had it: accuracy matrices and losses of tiny runs.

`tests/baseline/matrices.json` was written by version 0.1 (`python tests/test_baseline.py`) and holds, for each run, the
accuracy matrix and the mean loss of every epoch. A run is a command line, so the comparison depends on no module.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from zofc import cli

pytestmark = pytest.mark.no_cover  # other tests cover the methods; tracing makes these a third slower
BASELINE = Path(__file__).parent / "baseline" / "matrices.json"
SMALL = (
    "backbone.name=embedded", "data.source=glyphs", "data.classes=9", "data.increment=3", "data.per_class=8",
    "data.test_per_class=10", "training.batch_size=8", "training.device=cpu", "training.threads=1", "seed=7",
    "views.normalize=backbone", "views.flip=0", "views.scale=[0.5,1.0]",
)  # fmt: skip
PEFT = ("optimize.peft.epochs=2", "optimize.peft.lr=2")
RANDOM = ("head.init=uniform", "head.scale=1.0")  # the start that rows had in all recipes
HEAD = ("optimize.head.epochs=2", "optimize.head.lr=0.2", *RANDOM)
SLOW = (
    "optimize.peft.epochs=2",
    "optimize.peft.start=0",
    "optimize.peft.lr=0.02",
    "optimize.head.epochs=2",
    "optimize.head.lr=0.02",
)
FEW = ("peft.blocks=first 2", "coda.blocks=first 2", "coda.pool=9", "coda.length=4", "l2p.pool=6", "l2p.length=2",
       "l2p.top=3")  # fmt: skip
HYBRID = ("optimize.peft.order=zeroth", "optimize.peft.queries=2", "optimize.peft.clip=1.0", "optimize.head.epochs=1")
BOTH = (*PEFT, *HEAD, *FEW)
START = {  # what version 0.1 had no key for, where a method has another start since
    "aper": RANDOM,
    "ease": RANDOM,
    "lae": ("head.kind=linear", "head.init=auto", "head.scale=1"),
    "l2p": ("head.kind=linear", "head.init=uniform", "head.scale=1"),
    "coda": ("head.kind=linear", "head.init=uniform", "head.scale=1"),
    "inflora": ("head.init=uniform", "head.scale=1", "inflora.view=test"),
}
BY_TASK = ("ridge.strength_from=all",)  # a random fifth of each task, where recipes for own images have another rule
RUNS: dict[str, tuple[str, ...]] = {
    "simplecil": ("simplecil/base",),
    "ridge": ("ridge/base", *BY_TASK),
    "ridge projected": ("ridge/base", "ridge.projection=64", "ridge.budget=null", *BY_TASK),
    "classifier fo": ("classifier-fo/base", *HEAD),
    "classifier zo": ("classifier-zo/base", *HEAD),
    "adapter fo": ("adapter-fo/base", *BOTH),
    "adapter zo": ("adapter-zo/base", *BOTH),
    "adapter hybrid": ("zofc/base", *BOTH),
    "adapter hybrid, forward gradient": ("zofc/base", *BOTH, "optimize.peft.estimator=forward_gradient"),
    "adapter hybrid, per image": ("zofc/base", *BOTH, "optimize.peft.per=image", "optimize.peft.queries=1"),
    "adapter hybrid, one-sided, stacked": ("zofc/base", *BOTH, "optimize.peft.estimator=one_sided",
                                           "optimize.peft.chunk=3", "optimize.peft.micro_batch=3"),
    "adapter hybrid, ridge readout": ("zofc/base", *BOTH, "method.readout=ridge", *BY_TASK),
    "adapter hybrid, prototypes": ("zofc/base", *BOTH, "method.prototypes=true"),
    "adapter hybrid, lora": ("zofc/base", *BOTH, "peft.kind=lora"),
    "adapter hybrid, prefix": ("zofc/base", *BOTH, "peft.kind=prefix"),
    "adapter fo, unmasked": ("adapter-fo/base", *BOTH, "method.mask=false"),
    "adapter fo, adaptformer, adam": ("adapter-fo/base", *BOTH, "peft.kind=adaptformer", "optimize.peft.optimizer=adam",
                                      "optimize.peft.lr=0.01"),
    "adapter fo, joint": ("adapter-fo/base", *BOTH, "data.joint=true"),
    **{f"{name} {order}": (f"{name}-{order}/base", *SLOW, *FEW, *START.get(name, ()))
       for name in ("lae", "l2p", "coda", "aper", "ease", "inflora") for order in ("fo", "zo")},
    **{f"{name} hybrid": (f"{name}-fo/base", *SLOW, *FEW, *HYBRID, *START.get(name, ()))
       for name in ("lae", "l2p", "coda", "aper", "ease", "inflora")},
    **{f"{name} zo, as released": (f"{name}-zo/base", *SLOW, *FEW, "method.variant=zofc", *START.get(name, ()))
       for name in ("l2p", "coda", "ease", "inflora")},
    "lae zo, as released": ("lae-zo/base", *SLOW, *FEW, "method.variant=zofc", "lae.frozen=false", *START["lae"]),
}  # fmt: skip


def outcome(words: tuple[str, ...], runs: Path) -> dict[str, Any]:
    """The accuracy matrix and the losses of one run, by the command line."""
    recipe, *overrides = words
    sys.argv = ["zofc", "run", recipe, *SMALL, *overrides, "--runs", str(runs), "-q"]
    try:
        cli.main()
    except SystemExit as stop:
        assert not stop.code, words
    (folder,) = (path for path in runs.iterdir() if path.is_dir())
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return {
        "matrix": json.loads((folder / "matrix.json").read_text())["accuracy"],
        "losses": [event["loss"] for event in events if event["event"] == "epoch"],
    }


@pytest.mark.parametrize("name", RUNS)
def test_methods_learn_what_version_0_1_learned(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)
    baseline = json.loads(BASELINE.read_text())
    if not torch.__version__.startswith(baseline["torch"]):
        pytest.skip(f"the baseline was made with torch {baseline['torch']}; other versions may round differently")
    expected, now = baseline["runs"][name], outcome(RUNS[name], tmp_path)
    assert now["matrix"] == expected["matrix"]
    assert now["losses"] == pytest.approx(expected["losses"], rel=1e-5)


def main() -> None:
    """Write the baseline with the version at hand."""
    runs = {}
    for name, words in RUNS.items():
        with tempfile.TemporaryDirectory() as folder:
            runs[name] = outcome(words, Path(folder))
        print("BASELINE", name, runs[name]["matrix"][-1], runs[name]["losses"][-1:], flush=True)
    BASELINE.parent.mkdir(exist_ok=True)
    BASELINE.write_text(json.dumps({"torch": torch.__version__.partition("+")[0], "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
