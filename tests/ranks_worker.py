"""Trains recipes one after another, in one process or as a rank of several; the first rank writes what was exchanged.

python ranks_worker.py CASES.json OUTPUT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from zofc.errors import ZofcError
from zofc.optim.placement import Placement
from zofc.ranks import Ranks, join_ranks
from zofc.recipe import load_recipe
from zofc.runfolder import Run
from zofc.runfolder.identity import folder_for
from zofc.training.incremental_model import IncrementalModel
from zofc.training.resolve import check_recipe
from zofc.training.runs import start_run, train


def shift_after(step: int) -> None:
    """Let the parameters of this process differ after a step, as a device that computes wrongly would."""
    real = Placement.step

    def wrong(self: Placement, *given: object, **named: object) -> object:
        report = real(self, *given, **named)  # type: ignore[arg-type]
        if given[3] == step:
            next(iter(self.groups["peft"].values())).add_(1e-12)
        return report

    Placement.step = wrong  # type: ignore[method-assign,assignment]


def count_answers() -> dict[str, int]:
    """How many test images this process evaluates from here on."""
    counts, guesses = {"images": 0}, IncrementalModel.guesses

    def counted(self: IncrementalModel, *given: Any, **named: Any) -> Any:
        def wrap(work: Any) -> Any:
            def answer(images: Any) -> Any:
                counts["images"] += len(images)
                return work(images)

            return answer

        embed, scores = self.embed, self.scores
        self.embed, self.scores = wrap(embed), wrap(scores)  # type: ignore[method-assign]
        try:
            return guesses(self, *given, **named)
        finally:
            del self.embed, self.scores

    IncrementalModel.guesses = counted  # type: ignore[method-assign]
    return counts


def run_case(name: str, words: list[str], output: Path, ranks: Ranks) -> dict[str, object]:
    """What one case exchanged, or why it was refused."""
    recipe = check_recipe(load_recipe(words[0], words[1:]))
    ranks.sent.clear()
    if name == "differs" and not ranks.first:
        shift_after(3)
    run = start_run(recipe, output / name) if ranks.first else Run(folder_for(recipe, output / name))
    try:
        train(run, ranks=ranks)
    except ZofcError as error:
        return {"error": str(error)}
    return {"folder": str(run.path), "sent": dict(ranks.sent)}


def main() -> None:
    """All cases in turn."""
    cases, output = json.loads(Path(sys.argv[1]).read_text("utf-8")), Path(sys.argv[2])
    counts, answered = count_answers(), {}
    with join_ranks() as ranks:
        results = {}
        for name, words in cases.items():
            counts["images"] = 0
            results[name] = run_case(name, words, output, ranks)
            answered[name] = counts["images"]
        (output / f"answered.{ranks.rank}.json").write_text(json.dumps(answered), "utf-8")
        if ranks.first:
            (output / "results.json").write_text(json.dumps(results), "utf-8")


if __name__ == "__main__":
    main()
