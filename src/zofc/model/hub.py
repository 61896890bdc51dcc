"""Weights of timm models in the local cache and on their hubs, with a quick answer where there is no network.

A download by timm waits for a minute before it gives up. Here a hub that does not answer within seconds is an error
before the download starts, and weights in the cache are used without asking the hub.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path, PurePosixPath

import torch
from huggingface_hub import constants, get_session, try_to_load_from_cache
from timm.models import get_pretrained_cfg

HUB_FILES = ("model.safetensors", "pytorch_model.bin")
REQUEST_SECONDS = 3.0
REMEMBERED_SECONDS = 60.0  # for which an address that did not answer is not asked again
TOTAL_SECONDS = 4.0  # also for looking up the host's address, which has no limit of its own

_silent: dict[str, tuple[float, str]] = {}  # by address: when it did not answer, and what to say of it


def cached_weights(name: str) -> Path | None:
    """The file of a timm model's weights in the cache of the hub that they come from."""
    config = get_pretrained_cfg(name)
    if config is None:
        return None
    files = (config.hf_hub_filename,) if config.hf_hub_filename else HUB_FILES
    if config.hf_hub_id:
        repository, _, revision = config.hf_hub_id.partition("@")
        paths = (try_to_load_from_cache(repository, file, revision=revision or None) for file in files)
        if downloaded := next((path for path in paths if isinstance(path, str)), None):
            return Path(downloaded)
    if not config.url:
        return None
    path = Path(torch.hub.get_dir(), "checkpoints", PurePosixPath(config.url).name)
    return path if path.exists() else None


def why_unreachable(name: str) -> str:
    """Why the weights of a timm model cannot be downloaded now; empty if their hub answers, or there are none."""
    config = get_pretrained_cfg(name)
    if config is None or not (config.hf_hub_id or config.url):
        return ""
    if config.hf_hub_id and constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set and they are not in the cache"
    address = constants.ENDPOINT if config.hf_hub_id else config.url
    if (silent := _silent.get(address)) and time.monotonic() - silent[0] < REMEMBERED_SECONDS:
        return silent[1]
    if reason := _ask(address):
        _silent[address] = time.monotonic(), reason
    return reason


def _ask(address: str) -> str:
    answers: list[str] = []

    def ask() -> None:
        try:
            get_session().head(address, timeout=REQUEST_SECONDS)
            answers.append("")
        except Exception as error:  # of whichever HTTP library the hub's client uses
            answers.append(f"{address} does not answer: {str(error) or type(error).__name__}")

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(TOTAL_SECONDS)
    return answers[0] if answers else f"{address} does not answer within {TOTAL_SECONDS:.0f} s"
