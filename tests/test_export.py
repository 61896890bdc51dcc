"""Facts about bundles: their graphs compute what torch computes, and a run comes back from one as it was."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer

import zofc
from zofc.errors import BundleError, RecipeError, RunError
from zofc.export import bundle
from zofc.export.comparison import PredictionAgreement
from zofc.export.conversion import SharedWeights, write_graph
from zofc.export.graphs import learning_sources
from zofc.export.manifest import check_exportable
from zofc.export.quantization import BLOCK_SIZE, quantize_blocks
from zofc.export.reader import import_bundle
from zofc.export.writer import export_run
from zofc.optim.chunking import Chunking
from zofc.optim.directions import Directions, Space
from zofc.optim.estimators import get_estimator
from zofc.optim.evaluation import Query, evaluate_features
from zofc.recipe import Recipe, load_recipe
from zofc.runfolder import open_run
from zofc.runfolder.checkpoint import load_checkpoint
from zofc.training.runs import start_run, train

Make = Callable[..., Recipe]
Command = Callable[..., tuple[int, str]]
GEOMETRY = {"img_size": 16, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
LEARNING = ("enter", "features", "features_image", "tangents", "tangents_image")


@pytest.fixture(scope="module")
def scaled_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random ViT of two blocks with layer scale."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        vit = VisionTransformer(**GEOMETRY, num_classes=0, init_values=1.0)
        state = {name: value + 0.3 * torch.randn_like(value) for name, value in vit.state_dict().items()}
    path = tmp_path_factory.mktemp("weights") / "scaled.safetensors"
    save_file(state, path, {key: str(value) for key, value in GEOMETRY.items()} | {"mean": "0.4,0.5,0.6"})
    return path


@pytest.fixture(scope="module")
def make_run(scaled_weights: Path, tiny_recipe: Make, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Train a recipe on two tasks of two classes."""

    def make(name: str, *overrides: str) -> Path:
        recipe = tiny_recipe(name, f"backbone.name={scaled_weights}", "data.classes=4", *overrides)
        run = start_run(recipe, tmp_path_factory.mktemp("runs"))
        train(run)
        return run.path

    return make


@pytest.fixture(scope="module")
def run(make_run: Callable[..., Path]) -> Path:
    return make_run("zofc/base", "optimize.peft.lr=0.3", "peft.blocks=all", "peft.rank=3")


@pytest.fixture(scope="module")
def exported(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundles") / "zofc"
    result = export_run(run, path)
    assert result.agreement == PredictionAgreement(16, 16, result.agreement[2], result.agreement[2])
    assert set(result.nodes) == {"predict", *LEARNING}
    return path


@pytest.fixture
def copied(exported: Path, tmp_path: Path) -> Path:
    """A bundle to damage."""
    return Path(shutil.copytree(exported, tmp_path / "copied"))


def session(path: Path, name: str) -> Callable[..., list[np.ndarray[Any, Any]]]:
    opened = onnxruntime.InferenceSession(str(path / f"{name}.onnx"), providers=["CPUExecutionProvider"])

    def call(**inputs: Any) -> list[np.ndarray[Any, Any]]:
        return opened.run(None, {key: np.asarray(value) for key, value in inputs.items()})

    return call


def close(actual: Any, expected: torch.Tensor, tolerance: float = 2e-5) -> None:
    scale = float(expected.abs().max())
    np.testing.assert_allclose(actual, expected.numpy(), rtol=0, atol=tolerance * scale)


def method_of(run: Path) -> Any:
    return zofc.load(run).model.method


def pictures(count: int, size: int = 16) -> torch.Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(count))


def states(exported: Path, images: torch.Tensor) -> dict[str, np.ndarray[Any, Any]]:
    return dict(zip(("x", "h", "y"), session(exported, "enter")(images=images), strict=True))


# -- graphs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 4])
def test_features_are_a_function_of_the_adapter(exported: Path, run: Path, count: int) -> None:
    method, images = method_of(run), pictures(count)
    space = Space(method.groups()["peft"])
    state = states(exported, images)
    for part, mine in zip(method.prepare(images)[1:], state.values(), strict=True):
        close(mine, part)
    (features,) = session(exported, "features")(**state, adapter=space.center)
    close(features, method.extract(images))
    each = space.center + torch.randn(count, space.size, generator=torch.Generator().manual_seed(1)) * 0.1
    (features,) = session(exported, "features_image")(**state, adapter=each)
    for row, image, point in zip(features, images, each, strict=True):
        close(row[None], method.features(space.split(point), method.prepare(image[None])))


@pytest.mark.parametrize(("count", "queries"), [(1, 1), (3, 4)])
@pytest.mark.parametrize("per_image", [False, True])
def test_tangents_are_those_of_forward_gradients(
    exported: Path, run: Path, count: int, queries: int, per_image: bool
) -> None:
    method, images = method_of(run), pictures(count)
    space = Space(method.groups()["peft"])
    shape = (count, space.size) if per_image else (space.size,)
    vectors = Directions("gaussian", 3).stack(0, queries, shape, torch.device("cpu"))
    query = Query(space, vectors, get_estimator("forward_gradient"), 1e-3)
    expected = evaluate_features(method, images, query, True, Chunking(chunk=queries))
    name = "tangents_image" if per_image else "tangents"
    features, tangents = session(exported, name)(**states(exported, images), adapter=space.center, directions=vectors)
    close(features, expected.center)
    close(tangents, torch.cat(expected.around))


def test_differences_of_features_tend_to_tangents(exported: Path, run: Path) -> None:
    space = Space(method_of(run).groups()["peft"])
    state, center = states(exported, pictures(2)), space.center.numpy()
    along = Directions("rademacher", 3).stack(0, 1, (space.size,), torch.device("cpu")).float().numpy()
    _, tangents = session(exported, "tangents")(**state, adapter=center, directions=along)
    at = session(exported, "features")
    ahead, behind = (at(**state, adapter=center + sign * 1e-2 * along[0])[0] for sign in (1, -1))
    close((ahead - behind) / 2e-2, torch.from_numpy(tangents[0]), 1e-2)


def test_predictions_are_calibrated_and_named(exported: Path, run: Path) -> None:
    learner = zofc.load(run)
    pixels = np.random.default_rng(0).integers(0, 256, (5, 16, 16, 3), dtype=np.uint8)
    learner.model.test_view = type(learner.model.test_view)(
        16, 16, mean=(0.4, 0.5, 0.6), std=learner.model.test_view.std
    )
    probabilities, scores, features = session(exported, "predict")(images=pixels)
    np.testing.assert_allclose(probabilities, learner.predict_proba(list(pixels)), atol=1e-5)
    np.testing.assert_allclose(features, learner.embed(list(pixels)), atol=1e-4)
    assert scores.shape == (5, 4)
    graph = onnx.load(exported / "predict.onnx", load_external_data=False)
    metadata = {entry.key: entry.value for entry in graph.metadata_props}
    assert json.loads(metadata["classes"]) == list(learner.classes) and metadata["zofc"] == zofc.__version__


def test_weights_are_stored_once(exported: Path, run: Path) -> None:
    method = method_of(run)
    own = sum(value.numel() for value in (*method.backbone.vit.parameters(), *method.parameters()))
    size = (exported / bundle.WEIGHTS_FILE).stat().st_size
    assert size < 4 * own + 4096 * 30  # tensors of a page or more start on one
    files = [file for file in exported.glob("*.onnx") if file.stat().st_size > 150_000]
    assert not files


def test_lengths_stay_in_their_graph(tmp_path: Path) -> None:
    """Shapes are inferred from them before other files are read."""
    weights = SharedWeights(tmp_path / bundle.WEIGHTS_FILE, torch.nn.Linear(2, 2))
    for array in (np.ones(1000, np.int64), np.ones(1000, np.float32)):
        value = ir.Value(name="x", const_value=ir.tensor(array, name="x"))
        weights.add(value)
        assert isinstance(value.const_value, ir.ExternalTensor) == (array.dtype == np.float32)


def test_files_hold_nothing_about_the_machine_that_made_them(exported: Path) -> None:
    for file in exported.glob("*.onnx"):
        assert b"site-packages" not in file.read_bytes() and b".py" not in file.read_bytes()


# -- precisions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [8, 4])
def test_blocks_of_weights_are_near_them(bits: int) -> None:
    matrix = np.random.default_rng(0).normal(size=(80, 6)).astype(np.float32)
    values, scales, zeros = quantize_blocks(matrix, bits)
    assert values.shape == (6, 3, BLOCK_SIZE * bits // 8) and scales.shape == (18,)
    if bits == 4:
        values = np.stack([values & 15, values >> 4], -1).reshape(6, 3, BLOCK_SIZE)
        zeros = np.stack([zeros & 15, zeros >> 4], -1).reshape(6, 4)[:, :3]
    real = (values.astype(float) - zeros.reshape(6, 3)[..., None]) * scales.reshape(6, 3)[..., None]
    errors = np.abs(real.reshape(6, -1)[:, :80].T - matrix)
    assert errors.max() <= 0.51 * scales.max()


@pytest.mark.parametrize(("precision", "tolerance"), [("fp16", 3e-3), ("int8", 3e-2), ("int4", 0.6)])
def test_frozen_weights_may_have_fewer_bits(run: Path, tmp_path: Path, precision: str, tolerance: float) -> None:
    method, images = method_of(run), pictures(4)
    sources = {source.name: source for source in learning_sources(method, False)}
    weights = SharedWeights(tmp_path / bundle.WEIGHTS_FILE, method.backbone.vit)
    for name in ("enter", "features"):
        write_graph(sources[name], weights, precision, tmp_path / f"{name}.onnx")
    adapter = sources["features"].inputs["adapter"]
    (features,) = session(tmp_path, "features")(**states(tmp_path, images), adapter=adapter)
    close(features, method.extract(images), tolerance)
    with pytest.raises(AssertionError):
        close(features, method.extract(images), 1e-6)  # they are not the same weights
    graph = onnx.load(tmp_path / "features.onnx", load_external_data=False).graph
    kinds = [node.op_type for node in graph.node]
    products = [node for node in graph.node if node.op_type == "MatMulNBits"]
    assert len(products) == (0 if precision == "fp16" else 4) and ("Cast" in kinds) == (precision == "fp16")
    for node in products:
        settings = {entry.name: entry.i for entry in node.attribute}
        assert settings["accuracy_level"] == 1 and settings["bits"] == int(precision[3:])


# -- what is exported ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "overrides", "graphs"),
    [
        ("simplecil/base", [], {"predict", "frozen"}),
        ("ridge/base", ["ridge.projection=64"], {"predict", "frozen"}),
        ("zo-ridge/base", ["ridge.projection=64", "peft.blocks=first 1"], {"predict", "frozen", "enter", "features"}),
    ],
)
def test_each_method_has_the_graphs_that_it_needs(
    make_run: Callable[..., Path], tmp_path: Path, name: str, overrides: list[str], graphs: set[str]
) -> None:
    run = make_run(name, *overrides)
    result = export_run(run, tmp_path / "bundle")
    assert set(result.nodes) == graphs
    assert isinstance(result.agreement, PredictionAgreement) and result.agreement.same == result.agreement.images == 16
    manifest = bundle.read_manifest(tmp_path / "bundle")
    assert manifest["method"]["readout"] == {"simplecil/base": "means"}.get(name, "ridge")
    assert (tmp_path / "bundle" / bundle.PROJECTION_FILE).exists() == (name != "simplecil/base")
    import_bundle(tmp_path / "bundle", tmp_path / "back")
    one, other = zofc.load(run), zofc.load(tmp_path / "back")
    pixels = list(np.random.default_rng(0).integers(0, 256, (5, 20, 20, 3), dtype=np.uint8))
    np.testing.assert_array_equal(one.predict_proba(pixels), other.predict_proba(pixels))


def test_a_bundle_that_only_predicts_has_no_state(run: Path, tmp_path: Path) -> None:
    result = export_run(run, tmp_path / "bundle", predict_only=True)
    assert set(result.sizes) == {"predict.onnx", "weights.bin", "manifest.json", "recipe.yaml"}
    with pytest.raises(BundleError, match=r"state.safetensors: missing.*--predict-only"):
        import_bundle(tmp_path / "bundle", tmp_path / "back")


@pytest.mark.parametrize(
    ("name", "overrides", "text"),
    [
        ("lae-zo/cifar100-inc5", [], "lae cannot be exported: it answers with two adapters"),
        ("ease-fo/cifar100-inc5", [], "ease cannot be exported: it adds an adapter for every task"),
        ("zofc-lora/cifar100-inc5", [], "lora cannot be exported, only adapter"),
        ("adapter-fo/cifar100-inc5", [], "need a backward pass.*--predict-only"),
        (
            "classifier-zo/cifar100-inc5",
            [],
            "optimize.head.order: a bundle learns with first, not zeroth.*--predict-only",
        ),
        ("adapter-zo/cifar100-inc5", [], "optimize.head.order: a bundle learns with first"),
        (
            "classifier-fo/base",
            ["optimize.head.optimizer=adam"],
            "optimizer: a bundle learns with sgd or sign, not adam",
        ),
        ("classifier-fo/base", ["head.init=normal"], "head.init: a bundle cannot draw new rows as torch draws normal"),
    ],
)
def test_other_methods_are_refused_with_the_reason(name: str, overrides: list[str], text: str) -> None:
    with pytest.raises(RecipeError, match=text):
        check_exportable(load_recipe(name, overrides), predict_only=False, tasks=1)


def test_predictions_of_a_first_order_adapter_can_be_exported() -> None:
    check_exportable(load_recipe("adapter-fo/cifar100-inc5"), predict_only=True, tasks=1)


@pytest.mark.parametrize("change", ["tasks=1", "lr=0.0"])
def test_groups_that_do_not_move_any_more_are_exported(change: str) -> None:
    adam = ["optimize.peft.order=first", "optimize.peft.optimizer=adam", f"optimize.peft.{change}"]
    check_exportable(load_recipe("zo-ridge/base", adam), predict_only=False, tasks=1)


def test_only_bundles_are_replaced(run: Path, copied: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(BundleError, match="exists and is not a bundle; choose another"):
        export_run(run, tmp_path / "mine")
    assert (tmp_path / "mine" / "notes.txt").read_text() == "mine"
    state = bundle.read_state(copied)
    learned = {**state.values, "lessons": [{"classes": ["fox"], "images": 3}]}
    (copied / bundle.STATE_TENSORS).write_bytes(bundle.pack_state(state.tensors, learned))
    with pytest.raises(BundleError, match="has learned since its export"):
        export_run(run, copied)
    (copied / bundle.STATE_TENSORS).write_bytes(bundle.pack_state(state.tensors, state.values))
    export_run(run, copied, predict_only=True)
    assert not (copied / bundle.STATE_TENSORS).exists()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["copied", "mine"]


def test_an_unknown_precision_and_a_missing_library_are_named(
    zofc: Command, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, text = zofc("export", str(run), "-o", "bundle", "--precision", "int3")
    assert code == 2 and "precision: expected one of fp32, fp16, int8, int4, got 'int3'" in text
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, text = zofc("export", str(run), "-o", "bundle")
    assert code == 2 and "zofc[export]" in text


@pytest.mark.slow
def test_a_vit_b_is_exported_and_makes_a_step(tmp_path: Path) -> None:
    """timm's ViT-B/16 at 224 px with random weights; about a minute and 2 GB."""
    import zofc_device
    from device_bundles import make_lesson

    recipe = load_recipe("zofc/base", [
        "backbone.name=vit_base_patch16_224", "backbone.pretrained=false", "training.device=cpu",
        "training.check_adapter=false", "training.workers=0", "optimize.peft.epochs=1", "optimize.head.epochs=1",
        "optimize.peft.estimator=forward_gradient",
    ])  # fmt: skip
    learner = zofc.Learner(recipe)
    learner.learn(make_lesson("ant", "bee", images=2))
    learner.save(tmp_path / "run")
    export_run(tmp_path / "run", tmp_path / "bundle")
    device, lesson = zofc_device.load(tmp_path / "bundle"), make_lesson("cat", "dog", images=2)
    start = {name: value.clone() for name, value in learner.model.state_dict().items()}
    learner.learn(lesson)
    device.learn(lesson)
    assert device.model is not None
    for name in device.model.adapter:
        moved, own = learner.model.state_dict()[name] - start[name], torch.from_numpy(device.model.tensors[name])
        assert (own - start[name] - moved).norm() <= 1e-4 * moved.norm(), name
    np.testing.assert_allclose(device.predict_proba(lesson["cat"]), learner.predict_proba(lesson["cat"]), atol=1e-4)


# -- there and back --------------------------------------------------------------------------------------------------


def teach(path: Path, run: Path) -> None:
    """Let a bundle learn two classes, as a device does: new rows, and no statistics of the features."""
    state = bundle.read_state(path)
    tensors = {name: value for name, value in state.tensors.items() if not name.startswith("typicality.")}
    tensors["head.rows.2"] = torch.randn(2, 32, generator=torch.Generator().manual_seed(0))
    values = {
        **state.values, "classes": [*state.values["classes"], "fox", "hare"], "tasks": [[0, 2], [2, 4], [4, 6]],
        "calibration": {"scale": 2.0, "images": 9}, "lessons": [{"classes": ["fox", "hare"], "images": 9}],
    }  # fmt: skip
    (path / bundle.STATE_TENSORS).write_bytes(bundle.pack_state(tensors, values))


def test_a_run_comes_back_as_it_was(exported: Path, run: Path, tmp_path: Path) -> None:
    import_bundle(exported, tmp_path / "back")
    one, other = zofc.load(run), zofc.load(tmp_path / "back")
    assert one.classes == other.classes and one.model.tasks == other.model.tasks
    mine, theirs = one.model.state_dict(), other.model.state_dict()
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
    result = export_run(tmp_path / "back", tmp_path / "again", predict_only=True)
    assert result.agreement == "it is a saved model, which has no test images"
    rows = [load_checkpoint(open_run(path)).progress.rows for path in (run, tmp_path / "back")]
    assert rows[0] == rows[1] and len(rows[0]) == 2


def test_lessons_of_a_device_come_back_and_go_on(zofc: Command, copied: Path, run: Path, tmp_path: Path) -> None:
    teach(copied, run)
    code, text = zofc("import", str(copied), "-o", "back")
    assert code == 0 and "knows 6 classes from 3 tasks" in text
    code, text = zofc("evaluate", "back", "glyphs:clean", "--learned-only")
    assert code == 0 and "all images" in text
    code, text = zofc("report", "back")
    assert code == 0 and Path("report.html").exists()
    make_folder(Path("new"))
    code, text = zofc("predict", "back", "new", "--reject", "5%")
    assert code == 2 and "has learned on a device" in text
    code, text = zofc("learn", "back", "folder:new", "-o", "further", "-q")
    assert code == 0, text
    code, text = zofc("predict", "further", "new")
    assert code == 0 and text.count("new") == 12


def make_folder(path: Path) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    for name in ("owl", "toad"):
        (path / name).mkdir(parents=True)
        for number in range(6):
            Image.fromarray(rng.integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(path / name / f"{number}.png")


def damaged(path: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    manifest = json.loads((path / "manifest.json").read_text())
    state = bundle.read_state(path)

    def write(**changes: Any) -> Callable[[], Any]:
        return lambda: bundle.write_manifest(path, {**manifest, **changes})

    def pack(**changes: Any) -> Callable[[], Any]:
        content = bundle.pack_state(state.tensors, {**state.values, **changes})
        return lambda: (path / "state.safetensors").write_bytes(content)

    def flip(name: str) -> Callable[[], Any]:
        content = bytearray((path / name).read_bytes())
        content[-1] ^= 1
        return lambda: (path / name).write_bytes(content)

    def fill() -> Callable[[], Any]:
        content = bundle.pack_state({**state.tensors, "head.sigma": torch.tensor(float("nan"))}, state.values)
        return lambda: (path / "state.safetensors").write_bytes(content)

    yield "version 1 of the format; this zofc reads version 3", write(version=1)
    yield "not the manifest of a bundle", write(format="other")
    yield "does not list the files", write(files=None)
    files = {name: entry for name, entry in manifest["files"].items() if name != "tangents.onnx"}
    yield "does not list the files", write(files=files)
    yield "is not the name of a file", write(files={**manifest["files"], "../x": {}})
    yield "manifest.json: damaged, it is not JSON", lambda: (path / "manifest.json").write_text("{")
    content = (path / "state.safetensors").read_bytes()
    edited = content.replace(state.values["classes"][0].encode(), b"?" * len(state.values["classes"][0].encode()), 1)
    yield "state.safetensors: damaged, its checksum differs", lambda: (path / "state.safetensors").write_bytes(edited)
    yield "other weights than those of the backbone", write(backbone={"checksum": "0"})
    yield "its accuracies cannot be read", write(run=None)
    yield "weights.bin: damaged, its checksum differs", flip("weights.bin")
    yield "enter.onnx: damaged", flip("enter.onnx")
    yield "tangents.onnx: No such file", (path / "tangents.onnx").unlink
    yield "state.safetensors: damaged, its checksum differs", flip("state.safetensors")
    yield "state.safetensors: damaged, it cannot be read", lambda: (path / "state.safetensors").write_bytes(b"{}")
    yield "its names of classes are none", pack(classes=["a", "a"])
    yield "its tasks are not ranges", pack(tasks=[[0, 9]])
    yield "its calibration has no scale", pack(calibration={"scale": 0, "images": 3})
    yield "'head.sigma' holds values that are not finite", fill()
    yield "does not fit the recipe of the bundle", pack(tasks=[[0, 3], [3, 4]])
    yield "a lesson is under way", lambda: (path / "progress.safetensors").write_bytes(b"")


def test_damage_is_one_line_that_names_the_file(exported: Path, tmp_path: Path) -> None:
    for number, (text, _) in enumerate(damaged(exported)):
        path = Path(shutil.copytree(exported, tmp_path / str(number)))
        list(damaged(path))[number][1]()
        with pytest.raises(BundleError, match=text.replace(".", r"\.")) as error:
            import_bundle(path, tmp_path / "back")
        assert "\n" not in str(error.value) and str(path) in str(error.value)
        assert not (tmp_path / "back").exists()
        shutil.rmtree(path)
    with pytest.raises(BundleError, match="not a bundle, it has no manifest"):
        import_bundle(tmp_path / "absent", tmp_path / "back")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    with pytest.raises(RunError, match="not empty"):
        import_bundle(exported, tmp_path / "full")
