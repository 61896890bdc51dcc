"""From a recipe to what it names. Everything a registry knows is checked here, before any work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from zofc.data import DomainStream, Source, SourceOptions, Stream, open_source
from zofc.data.folder import check_beside
from zofc.data.source import SOURCES, unknown_source
from zofc.errors import BrokenImages, DataError, PluginError, RecipeError, RunError, ZofcError
from zofc.methods import METHODS, check_placement, complete_recipe, method_class
from zofc.model.backbone import EMBEDDED
from zofc.model.catalog import CHARACTERS, HUB_DEFAULT
from zofc.model.peft import PEFTS
from zofc.optim.estimators import ESTIMATORS, get_estimator
from zofc.paths import expand
from zofc.plugins import Registry, missing_plugin
from zofc.recipe import Recipe
from zofc.runfolder import Run
from zofc.runfolder.names import ENVIRONMENT_FILE, SKIPPED_FILE
from zofc.runfolder.progress import Progress
from zofc.training.device import pick_device
from zofc.training.loggers import check_loggers

AnyStream = Stream | DomainStream


def check_recipe(recipe: Recipe) -> Recipe:
    """The recipe with all settings of its method, if no error is found without opening data or weights."""
    recipe = complete_recipe(recipe)
    check_placement(recipe, recipe.optimize)
    for name, group in recipe.optimize.items():
        if group.order == "zeroth":
            try:
                exact = get_estimator(group.estimator).exact
            except RecipeError as error:
                raise RecipeError(f"{recipe.name}: optimize.{name}.estimator: {error}") from error
            precision = recipe.training.precision
            deep = name in method_class(recipe).in_features  # else only float64 arithmetic sees the points
            if deep and not exact and precision not in ("fp32", "fp64") and not recipe.training.allow_noisy_differences:
                raise RecipeError(
                    f"{recipe.name}: training.precision: finite differences ({group.estimator}, optimize.{name}) drown "
                    f"in the rounding of {precision}: measured on ViT-B/16 at epsilon 1e-3, their correlation with the "
                    f"derivative is about 0. Use optimize.{name}.estimator=forward_gradient or "
                    "training.precision=fp32; `zofc diagnose` shows it for your model, and "
                    "training.allow_noisy_differences=true runs it all the same."
                )
    _check_epochs(recipe)
    couples = method_class(recipe).couples_images
    for name, group in recipe.optimize.items():
        if couples and group.order == "zeroth" and group.per == "image":
            raise RecipeError(f"{recipe.name}: optimize.{name}.per: no image has a loss of its own here: {couples}")
    for key, spec in [("source", recipe.data.source), *(("then", spec) for spec in recipe.data.then)]:
        if not SOURCES.knows(spec.partition(":")[0]):
            raise RecipeError(f"{recipe.name}: data.{key}: {unknown_source(spec)}")
    if not PEFTS.knows(recipe.peft.kind):
        raise RecipeError(f"{recipe.name}: peft.kind: {PEFTS.suggest(recipe.peft.kind)}")
    check_loggers(recipe)
    pick_device(recipe.training.device)
    return recipe


def plugins_used(recipe: Recipe) -> dict[str, list[dict[str, str]]]:
    """What the environment of a run records of the plug-ins that its recipe needs, under `plugins`."""
    names: list[tuple[Registry[Any], str]] = [(METHODS, recipe.method.name), (PEFTS, recipe.peft.kind)]
    names += [(SOURCES, spec.partition(":")[0]) for spec in (recipe.data.source, *recipe.data.then)]
    names += [(ESTIMATORS, plan.estimator) for plan in recipe.optimize.values() if plan.order == "zeroth"]
    records = [record for registry, name in names if (record := registry.plugin(name))]
    return {"plugins": list({record["provides"]: record for record in records}.values())} if records else {}


def require_plugins(run: Run) -> list[str]:
    """Refuse a run that needs a plug-in which is not loaded; a sentence for each that has changed since."""
    changes = []
    registries: dict[str, Registry[Any]] = {one.key: one for one in (METHODS, PEFTS, SOURCES, ESTIMATORS)}
    for record in run.environment.get("plugins", ()):
        key, _, name = str(record.get("provides")).partition("=") if isinstance(record, dict) else ("", "", "")
        if (registry := registries.get(key)) is None:
            raise RunError(f"{run.path / ENVIRONMENT_FILE}: its record of plug-ins is damaged: {record!r}")
        if not registry.knows(name):
            raise PluginError(f"{run}: {missing_plugin(record)}")
        loaded = registry.plugin(name) or {}
        if "sha256" in record and loaded.get("sha256") != record["sha256"]:
            changes.append(f"the plug-in that provides {record['provides']} has changed since (its checksum differs)")
    return changes


def _check_epochs(recipe: Recipe) -> None:
    """In every epoch of a task something moves."""
    plans = recipe.optimize.values()
    for epoch in range(max((plan.epochs for plan in plans), default=0)):
        if not any(plan.start <= epoch < plan.epochs for plan in plans):
            raise RecipeError(f"{recipe.name}: optimize: no group moves in epoch {epoch + 1}; change start or epochs")


def open_data(recipe: Recipe, spec: str, notice: Callable[[str], None], test_fraction: float | None = None) -> Source:
    """A source under the recipe's settings: where each domain has its own classes, a source with domains has too."""
    try:
        source = _open(recipe, spec, notice, test_fraction)
    except DataError as error:
        text = str(error).removeprefix("data.source: ")
        if spec == recipe.data.source or text == str(error):
            raise
        raise DataError(text) from error  # it was given otherwise
    return source.paired() if recipe.data.by == "domain-class" and source.domain_names else source


def _open(recipe: Recipe, spec: str, notice: Callable[[str], None], test_fraction: float | None = None) -> Source:
    return open_source(spec, _options(recipe, notice, test_fraction))


def _options(recipe: Recipe, notice: Callable[[str], None], test_fraction: float | None = None) -> SourceOptions:
    data = recipe.data
    return SourceOptions(
        root=expand(data.root) if data.root else None,
        seed=recipe.seed,
        per_class=data.per_class,
        test_per_class=data.test_per_class,
        per_domain=data.by == "domain-class",
        test_fraction=data.test_fraction if test_fraction is None else test_fraction,
        skip_broken=data.skip_broken,
        cache=recipe.training.cache,
        notice=notice,
    )


def check_runs_folder(recipe: Recipe, runs: Path) -> None:
    """Refuse a folder of runs that would become a class of the images that they learn."""
    for spec in (recipe.data.source, *recipe.data.then):
        check_beside(spec, _options(recipe, print), runs)


def characters_only(name: str, source: str | None) -> str | None:
    """What to say of the embedded backbone for a source of other images than characters; None: images by class name."""
    if name != EMBEDDED or (source or "").partition(":")[0] == CHARACTERS:
        return None
    return (
        f"the {EMBEDDED} backbone was trained on characters and knows little of photographs; for those take "
        f"backbone.name={HUB_DEFAULT} (fetched from the hub once) or a file of weights"
    )


def order_seed(recipe: Recipe) -> int:
    """The seed of the class order."""
    return recipe.seed if recipe.data.order_seed is None else recipe.data.order_seed


def build_stream(recipe: Recipe, notice: Callable[[str], None]) -> AnyStream:
    """The stream of a recipe, with its images opened."""
    data, seed = recipe.data, order_seed(recipe)
    if data.by == "domain" and (data.joint or data.then):
        raise RecipeError("data.by: a stream of domains is neither joint nor followed by further sources")
    if data.by != "class" and data.first is not None:
        raise RecipeError(f"data.first: with data.by={data.by} each task is a domain, the first one too; leave it out")
    source, *then = open_sources(recipe, notice)
    if data.by == "domain":
        return DomainStream.build(source, order_seed=seed, classes=data.classes)
    shape: dict[str, Any] = {"order_seed": seed, "classes": data.classes, "joint": data.joint, "then": then}
    if data.by == "domain-class":
        return Stream.of_pairs(source, **shape)
    return Stream.build(source, increment=_increment(recipe, source, notice), first=data.first, **shape)


def _increment(recipe: Recipe, source: Source, notice: Callable[[str], None]) -> int:
    """Classes per task: as many as the recipe says, or all where there are fewer, unless it is a row of the paper."""
    data = recipe.data
    total = min(data.classes or len(source.classes), len(source.classes))
    if data.increment <= total:
        return data.increment
    problem = f"data.increment: {data.increment} classes per task, but there are only {total} in {source.name}"
    if recipe.paper is not None:
        raise RecipeError(f"{problem}; a row of the paper needs its data, so give data.increment or another recipe")
    what = "all are one task" if data.first is None else "what the first task leaves is one task"
    fewer = f". For more tasks: data.increment={total // 2}" if total > 1 else ""
    notice(f"{problem}: {what}{fewer}")
    return total


def open_sources(recipe: Recipe, notice: Callable[[str], None]) -> list[Source]:
    """The sources of a recipe; what is broken in any of them is reported together."""
    sources: list[Source] = []
    faults: list[BrokenImages] = []
    for number, spec in enumerate((recipe.data.source, *recipe.data.then)):
        try:
            sources.append(open_data(recipe, spec, notice) if number else _open(recipe, spec, notice))
        except BrokenImages as error:
            faults.append(error)
    if faults:  # what is evaluated or learned later has no such setting
        remedy = f"With data.skip_broken=true they are left out, and {SKIPPED_FILE} in the run folder lists them all."
        images = {image: reason for fault in faults for image, reason in fault.images.items()}
        raise BrokenImages("\n".join([*map(str, faults), remedy]), images)
    return sources


def open_stream(recipe: Recipe, notice: Callable[[str], None], progress: Progress | None = None) -> AnyStream:
    """The tasks of a recipe, checked against what its method can learn; those of a run that continues another one may
    lack the data that was learned before."""
    inherited = progress.inherited if progress else 0
    stream = _continue_stream(recipe, progress, notice) if progress and inherited else build_stream(recipe, notice)
    method_class(recipe).check(recipe, [len(task.classes) for task in stream.tasks[inherited:]], inherited)
    return stream


def _continue_stream(recipe: Recipe, progress: Progress, notice: Callable[[str], None]) -> AnyStream:
    tasks = [range(*task) for task in progress.tasks[: progress.inherited]]
    if not recipe.data.then or not tasks:
        raise RunError("this model was saved with nothing left to learn, and its record of that is damaged")
    learned = progress.classes[: tasks[-1].stop]
    new = open_data(recipe, recipe.data.then[-1], notice)  # first, so that its errors are reported as they are
    without = Stream.continuing(learned, tasks, [new], order_seed=order_seed(recipe))
    try:
        stream = build_stream(recipe, lambda _: None)
        if list(stream.classes[: len(learned)]) == learned:
            return stream
        why = "they were not learned from the recipe's data"
    except ZofcError as error:
        why = str(error)
    notice(f"earlier tasks are not evaluated again: {why}")
    return without
