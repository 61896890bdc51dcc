"""What several processes that train one run must agree on, and what they cannot do."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from zofc.errors import RanksError, RankStopped, RecipeError
from zofc.methods import method_class
from zofc.optim.placement import Placement
from zofc.ranks import Ranks
from zofc.recipe import Recipe
from zofc.runfolder import Run
from zofc.runfolder.names import CHECKPOINT_FOLDER, STATE_FILE


def check_divisible(recipe: Recipe, ranks: Ranks) -> None:
    """Refuse, before any work, a recipe whose steps cannot be divided as it says."""
    if ranks.size == 1:
        return
    if ":" in recipe.training.device:
        raise RecipeError(
            f"{recipe.name}: training.device: each of the {ranks.size} processes has a device of its own; use "
            f"training.device={recipe.training.device.partition(':')[0]}"
        )
    zeroth = {name: plan for name, plan in recipe.optimize.items() if plan.order == "zeroth"}
    couples = method_class(recipe).couples_images
    if recipe.training.divide == "images" and recipe.optimize and couples:
        remedy = "training.divide=queries divides the directions instead" if zeroth else "start it in one process"
        raise RecipeError(
            f"{recipe.name}: training.divide: images cannot be divided over processes: {couples}; {remedy}"
        )
    if recipe.training.divide == "images" or not recipe.optimize:
        return
    if not zeroth:
        raise RecipeError(f"{recipe.name}: training.divide: no group has queries to divide; use training.divide=images")
    for name, plan in zeroth.items():
        if plan.queries < 2 or plan.per == "image":
            why = "one query cannot be divided" if plan.queries < 2 else "each image has directions of its own"
            raise RecipeError(
                f"{recipe.name}: training.divide: {why} (optimize.{name}); use training.divide=images, or "
                f"optimize.{name}.per=batch with optimize.{name}.queries=2 or more"
            )


def check_same(ranks: Ranks, what: str, values: Iterable[object]) -> None:
    """Stop if a rank has read something else than the first one."""
    digest = hashlib.blake2b(repr(list(values)).encode(), digest_size=16).digest()
    if others := ranks.differing(digest):
        raise RanksError(
            f"{what} of {_named(others)} differ from those of rank 0. All nodes need the same data, weights "
            "and a run folder on a file system that they share"
        )


def check_states(ranks: Ranks, tensors: Mapping[str, Tensor], when: str) -> None:
    """Stop if the numbers of a rank are not those of the first one, bit for bit."""
    if not ranks.alone and (others := ranks.differing(tensor_digest(tensors))):
        raise RankStopped(
            f"after {when}, parameters of {_named(others)} differ from those of rank 0, so the run was stopped; if it "
            "happens again, a device computes wrongly or the nodes have different software"
        )


def what_remains(run: Run) -> str:
    """What there is of a run that was stopped, and what its command does when it is given again."""
    if (run.path / CHECKPOINT_FOLDER / STATE_FILE).exists():
        return "The last checkpoint is kept: the same command continues from it"
    return "There is no checkpoint yet: the same command begins anew"


def moving_state(placement: Placement) -> dict[str, Tensor]:
    """What the steps of a task change: parameters and states of optimizers."""
    moving = {f"{name}.{key}": value for name, group in placement.groups.items() for key, value in group.items()}
    leaves = (leaf for leaf in tree_leaves(placement.state()) if isinstance(leaf, Tensor))
    return moving | {f"state {number}": leaf for number, leaf in enumerate(leaves)}


def tensor_digest(tensors: Mapping[str, Tensor]) -> bytes:
    """16 bytes that differ between tensors."""
    total = hashlib.blake2b(digest_size=16)
    for name, value in tensors.items():
        total.update(name.encode())
        total.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.digest()


def _named(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
