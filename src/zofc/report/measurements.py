"""What `zofc evaluate`, `diagnose`, `cost` and `flatness` print, made from the same JSON that they write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from zofc.report.grid import Grid
from zofc.units import format_bytes, format_duration

Json = Mapping[str, Any]
NOT_MEASURED = "–"


def evaluation_tables(result: Json, confused: Sequence[tuple[str, str, int]]) -> Iterator[RenderableType]:
    """Accuracy per class, over all images, and the pairs of classes that were confused most."""
    classes, rows = result["classes"], []
    for name, accuracy in result["per_class"].items():
        index = classes.index(name)
        counts = result["confusion"][index]
        wrong = [0 if number == index else count for number, count in enumerate(counts)]
        most = f"{classes[wrong.index(max(wrong))]} ({max(wrong)})" if any(wrong) else NOT_MEASURED
        rows.append((name, most, str(sum(counts)), f"{accuracy:.1f}"))
    yield Grid(("class", "most often taken for", "images", "accuracy (%)"), tuple(rows), names=2)
    yield Text(f"all images: {result['accuracy']:.2f} %")
    if result["calibration_error"] is not None:
        yield Text(f"expected calibration error of the probabilities: {result['calibration_error']:.1f} %")
    if result["left_out"]:
        yield Text(f"left out, never learned: {', '.join(result['left_out'])}")
    if confused:
        pairs = tuple((true, f"→ {guess}", str(count)) for true, guess, count in confused)
        yield Text()
        yield Grid(("most confused", "taken for", "images"), pairs, names=2)


def recommendation_tables(result: Json) -> Iterator[RenderableType]:
    """Backbones and learners, best first, and what the numbers mean."""
    rows = tuple(
        (
            row["backbone"],
            row["learner"],
            f"{row['accuracy']:.1f} ± {row['error']:.1f}",
            format_duration(row["seconds"]),
            format_bytes(row["memory"]),
            format_bytes(row["saved"]),
        )
        for row in result["rows"]
    )
    heads = ("backbone", "learner", "expected accuracy (%)", "time to run", "memory", "saved")
    yield Grid(heads, rows, names=2)
    sampled = ", ".join(f"{count} by {name}" for name, count in result["sampled"].items())
    yield Text(
        f"{result['images']} training images in {result['classes']} classes; cross-validated on a sample of {sampled}. "
        "± is the standard error over folds. More images a class than in the sample do better than this. "
        "Time and memory to learn and test all images here: features at the pace of the sample, and all steps of an "
        "adapter at the pace of one. What the default's adapter adds to the accuracy is known once it is trained."
    )


def diagnosis_tables(result: Json) -> Iterator[RenderableType]:
    """Measurements with their meaning, and alignment by number of queries, of each zeroth-order set; then those of each
    first-order group."""
    where = f"start of task {result['task']} of {result['tasks']}, nothing trained; {_device(result)}"
    yield _heading(result["recipe"], f"{where}; batches of {result['batch_size']}: {result['batches']}")
    yield from _notes(result["notices"])
    if result["refusal"] is not None:
        yield Text.assemble(("A run of this recipe would be refused: ", "yellow"), result["refusal"])
    for one in result["sets"]:
        title = f"{one['name']}: {one['estimator']}, {one['queries']} queries, {one['directions']} directions"
        lines = tuple((line["what"], line["measured"], line["verdict"]) for line in one["lines"])
        yield Text()
        yield Grid(("", "measured", "what it means"), lines, title, names=3)
        points = []
        for point in one["alignments"]:
            mark = " (the recipe)" * (point["queries"] == one["queries"])
            points.append((f"{point['queries']}{mark}", f"{point['cosine']:.4f}", f"{point['theory']:.4f}"))
        yield Text()
        yield Grid(("Q", "cosine to the gradient", "in theory, √(Q/(Q+d−1))"), tuple(points))
    for one in result["groups"]:
        lines = tuple((line["what"], line["measured"], line["verdict"]) for line in one["lines"])
        yield Text()
        yield Grid(("", "measured", "what it means"), lines, f"{one['name']}: first order", names=3)


# -- cost ------------------------------------------------------------------------------------------------------------


def cost_tables(result: Json) -> Iterator[RenderableType]:
    """Memory, time and operations of a prediction and of a step in each phase, and the paper's formulas."""
    where = f"task {result['task']} of {result['tasks']}, a batch of {result['batch_size']}; {_device(result)}"
    yield _heading(result["recipe"], where)
    yield from _notes(result["notices"])
    yield _resources(result)
    yield Text()
    yield _steps(result)
    for phase in result["phases"]:
        yield Text()
        groups = ", ".join(phase["groups"])
        if phase["formula"] is None:
            yield Text(f"{groups}: the paper has no formula for a step of this kind")
            continue
        title = f"{groups}: {phase['formula']['text']}, less what was executed"
        parts = tuple((part["why"], f"{part['multiply_adds']:+.4g}") for part in phase["differences"])
        yield Grid(("reason", "multiply–adds"), parts, title)
    yield from _notes(result["conventions"])


def _resources(result: Json) -> Grid:
    memory, parameters = {name: format_bytes(size) for name, size in result["memory"].items()}, result["parameters"]
    groups = ", ".join(f"{name} {size:,}" for name, size in parameters["moving"].items()) or "none"
    rows = (
        ("parameters", f"{parameters['frozen']:,} frozen; moving: {groups}"),
        ("resident", f"{memory['resident']}, of which {memory['weights']} the backbone"),
        ("evaluation", f"{memory['evaluation']} at most, {result['eval_batch_size']} images at a time"),
        ("process", f"{memory['rss']} before the first step, {memory['rss_peak']} at most in steps (rss)"),
        ("making a batch", format_duration(result["loading_seconds"])),
    )
    return Grid(("", ""), rows, names=2)


def _steps(result: Json) -> Grid:
    """A column for a prediction and one for a step of each phase."""
    forward, memory = result["forward"], format_bytes(result["memory"]["evaluation"])
    executed = _operations(forward["evaluation"], forward["evaluation"] / forward["backbone"], forward["formula"])
    columns = [("prediction of an image", format_duration(result["evaluation_seconds"]), "", memory, *executed)]
    for phase in result["phases"]:
        title = f"a step: {', '.join(phase['groups'])} ({phase['epochs']} epochs)"
        times = (format_duration(phase[key]) for key in ("step_seconds", "epoch_seconds"))
        executed = _operations(phase["executed"]["total"], phase["forwards"], (phase["formula"] or {}).get("total"))
        columns.append((title, *times, format_bytes(phase["peak"]), *executed))
    names = ("", "time", "time of an epoch", "peak memory", "multiply–adds", "in plain forwards", "the paper's formula",
             "over ours")  # fmt: skip
    return Grid(names, tuple(columns)).transposed("")


def _operations(executed: float, forwards: float, formula: float | None) -> tuple[str, ...]:
    paper = (f"{formula:.4g}", f"{formula / executed:.2f}") if formula else (NOT_MEASURED, NOT_MEASURED)
    return f"{executed:.4g}", f"{forwards:.3g}", *paper


# -- flatness --------------------------------------------------------------------------------------------------------


def flatness_tables(result: Json, verdicts: Mapping[str, str | None]) -> Iterator[RenderableType]:
    """For each set of parameters: scores and curvature after each task, forgetting by the next, smoothing."""
    settings = result["settings"]
    yield from _notes(result["notices"])
    images = sum(result["images"].values())
    where = f"{images} {settings['split']} images, softmax over {settings['rows']} rows, float64"
    for name, states in result["by_set"].items():
        yield Text()
        yield _heading(f"over {name}", f"old tasks (the one just learned apart), {where}")
        yield _states(states, settings["rho"])
        if any(state["forgetting"] for state in states):
            yield Text()
            yield _forgetting(states, name)
        if verdict := verdicts.get(name):
            yield Text(verdict)
        if states and states[-1]["smoothed"]:
            yield Text()
            yield _smoothing(states[-1])


def path_tables(result: Json) -> Iterator[RenderableType]:
    """For each set of parameters: a row for each measured step of each task."""
    settings = result["settings"]
    yield from _notes(result["notices"])
    where = (
        f"{sum(result['images'].values())} {settings['split']} images, softmax over {settings['rows']} rows, float64"
    )
    headers = ("task", "step", "‖φ − φ₀‖", *(f"{name} {of}" for of in ("new", "old") for name in
               ("L", f"Φ, ρ={settings['rho']:g},", "λ max", "trace H")))  # fmt: skip
    for name, points in result["by_set"].items():
        yield Text()
        yield _heading(f"along the steps, over {name}", f"the task being learned (new) and those before it, {where}")
        rows = (
            (str(point["task"]), f"{point['step']:,}", f"{point['distance']:.3g}", *_shape(point["new"]),
             *_shape(point["old"]))
            for point in points
        )  # fmt: skip
        yield Grid(headers, tuple(rows))


def _shape(shape: Json | None) -> tuple[str, ...]:
    if shape is None:
        return (NOT_MEASURED,) * 4
    sharp, spectrum, trace = shape["sharpness"], shape["spectrum"], shape["trace"]
    return (
        f"{sharp['loss']:.4g}",
        f"{sharp['score']:.3g}",
        NOT_MEASURED if spectrum is None else _eigenvalue(spectrum),
        NOT_MEASURED if trace is None else f"{trace['mean']:.3g}",
    )


def _states(states: Sequence[Json], rho: float) -> Grid:
    """A column after each task: scores and curvature."""
    headers = ("after", "L old", f"Φ, ρ={rho:g}", "random ℓ2 mean", "random ℓ2 max", "random ℓ∞ mean", "random ℓ∞ max",
               "λ max", "trace H", "L just learned", "its Φ")  # fmt: skip
    rows = []
    for state in states:
        cells, old, trace = [NOT_MEASURED] * 8, state["old"], state["trace"]
        if old is not None and state["spectrum"] is not None and trace is not None:
            cells = [f"{old['loss']:.4g}", f"{old['score']:.3g}"]
            cells += [f"{value:.2g}" for one in state["random"] for value in (one["mean"], one["max"])]
            cells += [_eigenvalue(state["spectrum"]), f"{trace['mean']:.3g} ± {trace['error']:.1g}"]
        last = state["last"]
        rows.append((f"task {state['task']}", *cells, f"{last['loss']:.4g}", f"{last['score']:.3g}"))
    return Grid(headers, tuple(rows)).transposed("after")


def _forgetting(states: Sequence[Json], name: str) -> Grid:
    """A column for each step to a next task: what was forgotten, and its expansion."""
    headers = ("", "F in all", f"F by {name}", "gᵀΔθ", "½ΔθᵀHΔθ", "rest", "½λ‖Δθ‖²", "‖Δθ‖", "λ max")
    rows = []
    for state in states:
        if (step := state["forgetting"]) is not None:
            terms = [step["over"][key] for key in ("change", "first", "second", "rest", "bound", "distance")]
            cells = (*(f"{value:.3g}" for value in (step["whole"], *terms)), _eigenvalue(step["spectrum"]))
            rows.append((f"task {state['task']} → {state['task'] + 1}", *cells))
    return Grid(headers, tuple(rows)).transposed("forgetting")


def _smoothing(state: Json) -> Grid:
    """A row for each length of the smoothing."""
    rows = tuple(
        (f"task {state['task']}, ε={one['epsilon']:g}", f"{one['increase']:.3g} ± {one['increase_error']:.1g}",
         f"{one['expansion']:.3g}", f"{one['rest']:.2g} ± {one['rest_error']:.1g}")
        for one in state["smoothed"]
    )  # fmt: skip
    return Grid(("smoothed", "L_ε − L", "ε²/2 trace H", "rest"), rows)


def _eigenvalue(spectrum: Json) -> str:
    return f"{'' if spectrum['converged'] else '≥ '}{spectrum['largest']:.3g}"


def _device(result: Json) -> str:
    return f"{result['precision']} on {result['device']}"


def _heading(name: str, text: str) -> Text:
    return Text.assemble((name, "bold"), f": {text}")


def _notes(texts: Sequence[str]) -> Iterator[Text]:
    return (Text(f"note: {text}") for text in texts)
