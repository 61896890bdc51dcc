"""Train ZO-FC and the same model by gradients on generated glyphs, and print accuracy, forgetting and memory of both.

python examples/compare_orders.py                                          # six classes: half a minute on a CPU
python examples/compare_orders.py data.classes=20 data.per_class=100       # any settings of the recipes
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import zofc
from zofc.training import start_run, train

SMALL = [
    "data.classes=6", "data.increment=2", "data.per_class=24", "data.test_per_class=20", "training.workers=0",
    "training.batch_size=8", "optimize.peft.epochs=5", "optimize.head.epochs=5",
]  # fmt: skip


def main(overrides: list[str]) -> None:
    """One run per order, in a temporary folder; both see the same images in the same order."""
    with tempfile.TemporaryDirectory() as runs:
        for name in ("demo/zofc", "demo/first-order"):
            recipe = zofc.load_recipe(name, [*SMALL, *overrides])
            orders = ", ".join(f"{group}: {plan.order} order" for group, plan in recipe.optimize.items())
            metrics = train(start_run(recipe, Path(runs)))
            print(
                f"{recipe.title} ({orders}): {metrics['all_classes']:.1f} % on all classes, "
                f"forgetting {metrics['forgetting']:.1f}, peak memory {metrics['peak_memory'] / 2**20:.0f} MiB"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
