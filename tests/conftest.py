"""What test files share: a tiny random ViT as a weight file, small recipes and methods on it, the real assets."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # also in processes that tests start: threads that wait cost as much

import numpy as np
import pytest
import torch
from hypothesis import settings
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer

from zofc import cli
from zofc.cli import application
from zofc.methods import complete_recipe, method_class
from zofc.model.backbone import Backbone, load_backbone
from zofc.recipe import BackboneSettings, Group, Recipe, load_recipe

settings.register_profile("zofc", deadline=None)  # no test reads a clock
settings.load_profile("zofc")
LINEAR = ("lae", "l2p", "coda", "inflora")  # methods with a linear classifier
GEOMETRY = {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 2}


def method_recipe(name: str = "adapter", **sections: Any) -> Recipe:
    """A recipe for a method by itself; sections of it replace these, and those of `method` are added to its name."""
    head = {"kind": "linear" if name in LINEAR else "cosine"}
    method = {"name": name, **sections.pop("method", {})}
    return Recipe(**{"seed": 3, "head": head, "peft": {"blocks": "first 2"}, **sections, "method": method})


def grow_method(backbone: Backbone, recipe: Recipe, *sizes: int) -> Any:
    """The method of a recipe with room for tasks of so many classes."""
    method = method_class(recipe)(backbone, recipe)
    for size in sizes:
        start = method.tasks[-1].stop if method.tasks else 0
        method.extend(range(start, start + size))
    return method


def shake(module: torch.nn.Module, size: float, seed: int = 5) -> None:
    """Move all parameters away from their initial values, where much is zero or orthonormal."""
    generator = torch.Generator().manual_seed(seed)
    for value in module.parameters():
        value.add_(size * torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value.dtype))


def names_by_group(groups: Mapping[str, Mapping[str, torch.Tensor]]) -> dict[str, set[str]]:
    return {name: set(group) for name, group in groups.items()}


def placements(first: Group, zeroth: Group) -> dict[str, dict[str, Group]]:
    """The three placements that every method is tested under."""
    return {
        "first order": {"peft": first, "head": first},
        "zeroth order": {"peft": zeroth, "head": zeroth},
        "hybrid": {"peft": zeroth, "head": first},
    }


@pytest.fixture(autouse=True)
def _few_threads() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoded images of tests do not go to the user's cache."""
    monkeypatch.setenv("ZOFC_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.delenv("ZOFC_CACHE_LIMIT", raising=False)


@pytest.fixture(autouse=True)
def _no_network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in the suite may reach for a network; a test of a server of its own, marked `loopback`, reaches that."""
    real = socket.socket.connect
    own = request.node.get_closest_marker("loopback") is not None

    def connect(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and not (own and address[0] == "127.0.0.1"):
            raise AssertionError(f"a test tried to reach {address}")
        real(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect)


@pytest.fixture(scope="session")
def tiny_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ViT of 16 px, 5 tokens, width 24, depth 3, in fp16, with a classifier that must be ignored."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        vit = VisionTransformer(**GEOMETRY, num_classes=7)
        state = {
            name: torch.randn_like(value) * 0.3 if value.dim() > 1 else value
            for name, value in vit.state_dict().items()
        }
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    metadata = {
        **{key: str(value) for key, value in GEOMETRY.items()},
        "mean": "0.4,0.5,0.6",
        "std": "0.2,0.2,0.2",
    }
    save_file({name: value.half() for name, value in state.items()}, path, metadata)
    return path


@pytest.fixture
def tiny(tiny_weights: Path) -> Backbone:
    return load_backbone(BackboneSettings(name=str(tiny_weights)))


@pytest.fixture(scope="session")
def tiny_recipe(tiny_weights: Path) -> Callable[..., Recipe]:
    """A quick recipe: `tiny_recipe("zofc/base", "data.increment=2", …)`."""

    def make(name: str = "zofc/base", *overrides: str) -> Recipe:
        small = [
            f"backbone.name={tiny_weights}", "data.source=glyphs:clean", "data.classes=6", "data.increment=2",
            "data.per_class=6", "data.test_per_class=4", "training.batch_size=8", "training.device=cpu",
            "views.augment=crop-flip",
        ]  # fmt: skip
        recipe = load_recipe(name)
        if "peft" in recipe.optimize:
            small += ["peft.blocks=first 2", "optimize.peft.epochs=2"]
        if "head" in recipe.optimize:
            small += ["optimize.head.epochs=1", "head.init=auto", "head.scale=1.0"]  # the start of the paper's rows
        return complete_recipe(load_recipe(name, [*small, *overrides]))

    return make


@pytest.fixture(scope="session")
def device_graphs(tiny_recipe: Callable[..., Recipe], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a tiny model with all graphs."""
    from device_bundles import ALL_GRAPHS, export_graphs

    base = tmp_path_factory.getbasetemp()
    shared = base.parent if base.name.startswith("popen-") else base  # of the processes of one test run
    return export_graphs(tiny_recipe(*ALL_GRAPHS), shared)


@pytest.fixture(scope="session")
def embedded_graphs(tiny_recipe: Callable[..., Recipe], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The graphs of the embedded backbone by which an adapter is trained along shared directions."""
    from device_bundles import EMBEDDED, export_some_graphs

    base = tmp_path_factory.getbasetemp()
    return export_some_graphs(tiny_recipe(*EMBEDDED), base.parent if base.name.startswith("popen-") else base)


@pytest.fixture
def device_pair(device_graphs: Path, tiny_recipe: Callable[..., Recipe], tmp_path: Path) -> Callable[..., Any]:
    """A learner of a first task, and its bundle in zofc-device: `device_pair("zofc/base", "method.mask=false", …)`."""
    import zofc_device
    from device_bundles import FIRST, QUIET, write_bundle
    from zofc import Learner

    def make(name: str, *overrides: str) -> tuple[Learner, zofc_device.Learner]:
        learner = Learner(tiny_recipe(name, *QUIET, *overrides))
        learner.learn(FIRST)
        return learner, zofc_device.load(write_bundle(learner, device_graphs, tmp_path / "bundle"))

    return make


@pytest.fixture
def images() -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).random((6, 3, 16, 16), dtype=np.float32))


@pytest.fixture(scope="session")
def assets() -> Path:
    """Real weights and images, where ZOFC_DATA has them."""
    root = Path(os.environ.get("ZOFC_DATA") or "absent")
    if not (root / "cifar100").is_dir() or not (root / "backbones").is_dir():
        pytest.skip(
            "no real images and weights: set ZOFC_DATA to a folder with cifar100/*.parquet and backbones/*.safetensors"
        )
    return root


@pytest.fixture
def zofc(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[int, str]]:
    """Call the command in an empty folder; returns its exit code and all it printed."""
    monkeypatch.chdir(tmp_path)
    for console in (application.out, application.err):
        monkeypatch.setattr(console, "width", 200)  # the environment may have fixed another when it was made

    def call(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["zofc", *words])
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return call
