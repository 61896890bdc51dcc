"""Which device, how many threads, and what a run was made with."""

from __future__ import annotations

import os
import platform
import subprocess
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import zofc
from zofc.errors import RecipeError, nearest
from zofc.ranks import several_processes
from zofc.recipe import TrainingSettings

PACKAGES = ("torch", "torchvision", "timm", "numpy", "pillow", "safetensors", "pydantic", "pyarrow")


def pick_device(name: str) -> torch.device:
    """`auto` takes cuda, then mps, then cpu; a named device that is not there is refused. Of several processes on a
    machine, each has a CUDA device of its own."""
    device = _find_device(name)
    if not several_processes() or device.type != "cuda":
        return device
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if local >= torch.cuda.device_count():
        raise RecipeError(
            f"training.device: there are {torch.cuda.device_count()} CUDA devices for more processes; start at most as "
            "many (torchrun --nproc-per-node), or give training.device=cpu"
        )
    return torch.device("cuda", local)


def _find_device(name: str) -> torch.device:
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind in ("cuda", "mps", "cpu") if available[kind]))
    kind, _, number = name.partition(":")
    if kind not in available or (number and not number.isdigit()):
        raise RecipeError(f"training.device: '{name}' is not a device{nearest(name, ('auto', *available))}")
    if not available[kind]:
        raise RecipeError(f"training.device: {kind} is not available on this machine; use training.device=auto")
    if kind == "cuda" and number and int(number) >= torch.cuda.device_count():
        raise RecipeError(f"training.device: '{name}', but there are {torch.cuda.device_count()} CUDA devices")
    return torch.device(name)


def set_up(device: torch.device, settings: TrainingSettings) -> None:
    """Threads, precision of products and choice of kernels as asked, for the whole process."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    torch.backends.cudnn.benchmark = False
    tf32 = settings.precision == "tf32"  # otherwise off: a finite difference through TF32 products is noise
    torch.backends.cudnn.allow_tf32 = tf32
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    if device.type == "cuda":
        if device.index is not None:
            torch.cuda.set_device(device)  # streams and recordings are made on the current one
        # cuBLAS reads these when it is first used; a deterministic one needs the former
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":16:8" if settings.memory else ":4096:8")
        if settings.memory:
            os.environ.setdefault("CUBLASLT_WORKSPACE_SIZE", "512")  # KiB
        warnings.filterwarnings("ignore", message="Memory Efficient attention defaults to a non-deterministic")
    # what torch says of itself when it first differentiates forward
    warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated", category=FutureWarning)
    torch.use_deterministic_algorithms(settings.deterministic, warn_only=True)
    deterministic: Any = torch.utils.deterministic
    deterministic.fill_uninitialized_memory = False  # a write for each allocation, which nothing reads


def environment(device: torch.device) -> dict[str, Any]:
    """Versions, device and commit, for the run folder."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "zofc": zofc.__version__,
        "python": platform.python_version(),
        **{package: _version(package) for package in PACKAGES},
        "platform": platform.platform(),
        "device": str(device),
        "device_name": name,
        "threads": torch.get_num_threads(),
        "git": _commit(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the working tree that zofc is imported from, if it is one."""
    here = Path(__file__).resolve().parent
    try:
        done = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True, text=True, timeout=5, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
