"""Types of settings: numbers and text within the limits of `zofc.limits`, which error messages and the list of settings
name."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from zofc import limits


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("expected text without the character NUL")
    return text


def _folder_name(text: str) -> str:
    if any(letter < " " or letter == "\x7f" for letter in text) or len(text.encode()) > limits.NAME_BYTES:
        raise ValueError(f"expected at most {limits.NAME_BYTES} bytes without control characters: a folder is named so")
    return text


Positive = Annotated[int, Field(gt=0, le=limits.COUNT)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Weight = Annotated[float, Field(ge=0, le=limits.FACTOR)]
Factor = Annotated[float, Field(gt=0, le=limits.FACTOR)]
SignedFactor = Annotated[float, Field(ge=-limits.FACTOR, le=limits.FACTOR)]
Epsilon = Annotated[float, Field(gt=0, le=limits.EPSILON)]
Resize = Annotated[float, Field(ge=1, le=limits.RESIZE)]
Epochs = Annotated[int, Field(gt=0, le=limits.EPOCHS)]
StartEpoch = Annotated[int, Field(ge=0, le=limits.EPOCHS)]
Queries = Annotated[int, Field(gt=0, le=limits.QUERIES)]
BatchSize = Annotated[int, Field(gt=0, le=limits.BATCH)]
PerClass = Annotated[int, Field(gt=0, le=limits.PER_CLASS)]
Rank = Annotated[int, Field(gt=0, le=limits.MODULE_WIDTH)]
PromptTokens = Annotated[int, Field(gt=0, le=limits.PROMPT_TOKENS)]
EvenTokens = Annotated[int, Field(gt=1, multiple_of=2, le=limits.PROMPT_TOKENS)]
PoolSize = Annotated[int, Field(gt=0, le=limits.PROMPT_POOL)]
Projection = Annotated[int, Field(ge=0, le=limits.PROJECTION)]
Bytes = Annotated[int, Field(gt=0, le=limits.BYTES)]
Megabytes = Annotated[int, Field(ge=1_000_000, le=limits.BYTES)]  # in bytes, at least one
ImageSide = Annotated[int, Field(gt=0, le=limits.VIT_PIXELS)]
Threads = Annotated[int, Field(gt=0, le=limits.THREADS)]
RankWait = Annotated[float, Field(gt=0, le=limits.RANK_WAIT)]
Workers = Annotated[int, Field(ge=0, le=limits.WORKERS)]
PathText = Annotated[str, Field(max_length=limits.PATH_LETTERS), AfterValidator(_without_nul)]
FolderName = Annotated[str, AfterValidator(_folder_name)]
Title = Annotated[str, Field(max_length=limits.TITLE_LETTERS)]
