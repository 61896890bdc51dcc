"""`zofc export` and `import`: a model as a bundle of ONNX graphs, and what a bundle has learned as a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zofc.cli.application import PluginFiles, RunPath, app, note, progress, say


@app.command()
def export(
    path: RunPath,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the bundle.")],
    precision: Annotated[
        str, typer.Option(help="Of the frozen weights: fp32, fp16, or int8 and int4 (blocks of 32 with a scale each).")
    ] = "fp32",
    predict_only: Annotated[
        bool, typer.Option("--predict-only", help="Only the graph that predicts; the bundle cannot learn.")
    ] = False,
    plugin: PluginFiles = None,
) -> None:
    """Write the model of a finished run as ONNX graphs, to predict and to learn without torch.

    predict.onnx is plain inference in any ONNX runtime: images to probabilities. With the other files, zofc-device
    learns further classes by forward passes; zofc import brings them back.
    """
    _require_onnx()
    from zofc.export.writer import export_run
    from zofc.units import format_bytes

    with progress(f"reading {path}") as on_progress:
        result = export_run(path, output, precision, predict_only, on_progress)
    for name, size in result.sizes.items():
        nodes = result.nodes.get(name.removesuffix(".onnx"))
        say(f"{name}: {format_bytes(size)}{f', {nodes:,} nodes' if nodes else ''}")
    if isinstance(result.agreement, str):
        note(f"predictions were not compared with torch: {result.agreement}")
    else:
        say(describe_agreement(*result.agreement))
    say(f"bundle: {result.path}, {format_bytes(sum(result.sizes.values()))}, {precision}")


def describe_agreement(images: int, same: int, right: int, right_in_torch: int) -> str:
    """How the answers of the exported model compare with torch's."""
    accuracy, in_torch = (100 * count / images for count in (right, right_in_torch))
    return f"agrees with torch on {same:,} of {images:,} images; accuracy {accuracy:.2f} %, in torch {in_torch:.2f} %"


@app.command("import")
def import_(
    path: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A bundle that may have learned further classes.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the run.")],
    plugin: PluginFiles = None,
) -> None:
    """Bring a bundle back as a run folder, with all that it has learned, for report, evaluate, learn and predict."""
    from zofc.export.reader import import_bundle

    model = import_bundle(path, output)
    say(f"run: {output}, which knows {len(model.classes)} classes from {len(model.tasks)} tasks")


def _require_onnx() -> None:
    """Refuse to export without the libraries that it needs."""
    from importlib.util import find_spec

    from zofc.errors import BundleError

    if missing := [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]:
        raise BundleError(f"zofc export needs {', '.join(missing)}; install the extra: pip install 'zofc[export]'")
