"""What someone gets who names nothing but images: a backbone that is at hand, the recommended learner, tasks that fit
the number of classes. Every choice is an ordinary setting with a reason, and gives way to what the user says."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from zofc.data.source import SOURCES, kind_of
from zofc.errors import RecipeError
from zofc.model.backbone import EMBEDDED, Backbone, load_backbone
from zofc.model.catalog import CHARACTERS, HUB_DEFAULT, CatalogEntry, backbones, is_downloaded
from zofc.paths import expand
from zofc.recipe import Recipe, load_recipe
from zofc.runfolder import Run
from zofc.training.device import pick_device
from zofc.training.overrides import divide_overrides
from zofc.training.resolve import open_sources

TRAINED, CLOSED_FORM = "zo-ridge/base", "ridge/base"
PROJECTED = ("ridge.projection=8192", "ridge.orthogonal=true")
ADVICE = {  # of models on the hub, in the order in which they are taken where several were downloaded
    HUB_DEFAULT: "the default for photographs",
    "vit_base_patch14_dinov2.lvd142m": "better and four times as slow; for a GPU",
    "vit_base_patch16_224.augreg_in21k": "that of the paper, trained on ImageNet-21k",
    "vit_small_patch16_224.augreg_in21k": "the fastest of these, trained on ImageNet-21k",
}
PREFERRED = tuple(ADVICE)
MOST_PARAMETERS = 100_000_000  # of a backbone that is taken unasked
USUAL_SIZE = 224  # pixels; some backbones were trained at more, which costs five times as much
FAST_ENOUGH = 1e9  # operations of one image's forward pass, up to which an adapter is trained on a CPU
TASKS = 5
UNNAMED = "folder:images"  # of recipes for a user's own images, until there are some
ADAPTED_BLOCKS = 5  # as recipes have it


@dataclass(frozen=True)
class Choice:
    """A recipe and why it is as it is, a sentence for each setting that was chosen."""

    recipe: Recipe
    reasons: tuple[str, ...]


def source_of(word: str) -> str | None:
    """The data source that a word of the command line names; a folder of images needs no more than its path."""
    if SOURCES.knows(word.partition(":")[0]):
        return word
    path = expand(word)
    kind = None if Run(path).exists else kind_of(path)
    return None if kind is None else f"{kind}:{word}"


def choose_recipe(source: str | None = None, overrides: Sequence[str] = ()) -> Choice:
    """A recipe for a source of images, or for a learner that will be given some; `overrides` win over every choice."""
    given = {key: value for key, _, value in (override.partition("=") for override in overrides)}
    changes: list[str] = [] if source is None else [f"data.source={source}"]
    reasons: list[str] = []

    def choose(change: str, reason: str) -> None:
        key = change.partition("=")[0]
        if key not in given:
            changes.append(change)
            reasons.append(reason)

    if "backbone.name" not in given:
        name, reason = _pick_backbone(source)
        choose(f"backbone.name={name}", reason)
    general = [override for override in overrides if override.startswith(("backbone.", "data.", "training.", "seed="))]
    plain = load_recipe(CLOSED_FORM, [*changes, *general])
    backbone = load_backbone(plain.backbone, plain.seed)
    size = backbone.image_size if "backbone.image_size" in given else _pick_size(backbone)
    if size != backbone.image_size:
        choose(
            f"backbone.image_size={size}",
            f"images of {size} px: at the {backbone.image_size} px that the backbone was trained at, each would take "
            f"{(backbone.image_size / size) ** 2:.0f} times as long",
        )
    if source is not None:
        classes = len(open_sources(plain, lambda _: None)[0].classes)
        increment = _pick_increment(classes)
        choose(f"data.increment={increment}", f"{classes} classes in tasks of {increment}")
    family, more, reason = _pick_learner(backbone, size, given)
    return Choice(load_recipe(family, [*changes, *more, *overrides]), (*reasons, reason))


def choose_for(
    names: Sequence[str], sources: Mapping[str, str], overrides: Sequence[str], notice: Callable[[str], None]
) -> list[tuple[Recipe, Sequence[str]]]:
    """A recipe for each name, with its reasons: that of images is chosen, and recipes without images of their own learn
    the same ones beside it, with the same backbone and tasks. An override is for the recipes that have its key."""
    named = [name for name in names if name not in sources]
    if not named:
        choices = {name: choose_recipe(source, overrides) for name, source in sources.items()}
        return [(choices[name].recipe, choices[name].reasons) for name in names]
    kinds = [TRAINED if name in sources else name for name in names]
    divided = dict(zip(names, divide_overrides(kinds, overrides, notice, names), strict=True))
    choices = {name: choose_recipe(source, divided[name]) for name, source in sources.items()}
    found: list[tuple[Recipe, Sequence[str]]] = []
    for name in names:
        if name in sources:
            found.append((choices[name].recipe, choices[name].reasons))
            continue
        recipe = load_recipe(name, divided[name])
        if recipe.data.source == UNNAMED and f"data.source={UNNAMED}" not in overrides:
            if len(sources) > 1:
                raise RecipeError(f"{name}: say which images it learns, in a command of its own: {name} data.source=…")
            (first,) = choices.values()
            recipe = recipe.model_copy(update={"data": first.recipe.data, "backbone": first.recipe.backbone})
            notice(f"{name} learns {first.recipe.data.source} too, with the same backbone and tasks")
        found.append((recipe, ()))
    return found


# -- single choices --------------------------------------------------------------------------------------------------


def _pick_backbone(source: str | None) -> tuple[str, str]:
    """The name of a backbone, and why it."""
    if source is not None and source.partition(":")[0] == CHARACTERS:
        return EMBEDDED, "the embedded backbone, which was trained on characters"
    found = [(entry.name, entry.backbone.parameters) for entry in _at_hand() if entry.backbone is not None]
    if not found:
        return HUB_DEFAULT, f"no weights are at hand: {HUB_DEFAULT} is fetched from the hub"
    fitting = [one for one in found if one[1] <= MOST_PARAMETERS]
    name, parameters = max(fitting, key=itemgetter(1)) if fitting else min(found, key=itemgetter(1))
    why = "it is at hand" if len(found) == 1 else f"the largest of {len(found)} at hand"
    return name, f"the backbone is {name}, {parameters / 1e6:.0f} M parameters: {why}"


def backbones_at_hand() -> list[str]:
    """The names of the user's weight files and of preferred models that were downloaded before; the embedded backbone
    where there is none."""
    return [entry.name for entry in _at_hand()] or [EMBEDDED]


def recommended_backbones() -> Iterator[tuple[CatalogEntry, str]]:
    """What to choose among, with advice: what is at hand first, and the embedded backbone last."""
    found = list(_at_hand())
    for entry in found:
        yield entry, f"at hand; {ADVICE[entry.name]}" if entry.name in ADVICE else "at hand"
    for name in filter(lambda name: name not in {entry.name for entry in found}, PREFERRED):
        yield from ((entry, ADVICE[name]) for entry in backbones(name))
    yield from ((entry, "for characters and tests, not for photographs") for entry in backbones(EMBEDDED))


def _at_hand() -> Iterator[CatalogEntry]:
    """Weight files of the user, and preferred models that were downloaded before."""
    for entry in backbones():
        if entry.weights not in ("package", "file"):
            break  # those of timm follow, which are many
        if entry.weights == "file":
            yield entry
    for name in filter(is_downloaded, PREFERRED):
        yield from backbones(name)


def _pick_size(backbone: Backbone) -> int:
    """The usual size, in whole patches, for a backbone of larger images."""
    patch = int(backbone.vit.patch_embed.feat_ratio())
    return min(backbone.image_size, USUAL_SIZE // patch * patch or patch)


def _pick_learner(backbone: Backbone, size: int, given: Mapping[str, str]) -> tuple[str, Sequence[str], str]:
    """A family of recipes, settings for it, and why it."""
    device = pick_device(given.get("training.device", "auto"))
    operations = 2 * backbone.parameters * backbone.tokens * (size / backbone.image_size) ** 2
    asked = any(key.startswith(("optimize.", "peft.")) for key in given)
    if device.type == "cpu" and operations > FAST_ENOUGH and not asked:
        reason = (
            "the learner is ridge regression on a random projection of the features: on a CPU, steps of this backbone "
            f"take too long to train an adapter ({TRAINED} trains one all the same)"
        )
        return CLOSED_FORM, PROJECTED, reason
    reason = (
        "the learner is ZO-Ridge: an adapter is trained in the first task, and answers only where it does better than "
        "the frozen features on images held back from it"
    )
    shallow = ["peft.blocks=all"] if len(backbone.vit.blocks) < ADAPTED_BLOCKS else []
    return TRAINED, [*shallow, *(["preset=fast"] if device.type == "cuda" and "preset" not in given else [])], reason


def _pick_increment(classes: int) -> int:
    """Classes a task: a few tasks of several classes, or a single one of up to three classes."""
    return classes if classes <= 3 else max(2, math.ceil(classes / TASKS))
