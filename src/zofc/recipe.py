"""A recipe is the complete, validated description of a run.

YAML files may build on others (`extends: name` or a list of names, later ones win), carry `presets` (named
overlays, chosen with `preset=NAME`) and be changed from the command line (`optimize.peft.lr=0.02`). What a registry
must check (does this method have that group?) is checked when the run is resolved, before any work.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(gt=0, lt=1)]


class Strict(BaseModel):
    """No unknown keys, no silent conversions, no changes after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Views(Strict):
    """How images become model inputs; sizes follow the backbone (crop s, resize s·256/224)."""

    augment: Literal["crop-flip", "none"] = Field("crop-flip", description="none: the test view also in training")
    scale: tuple[float, float] = Field((0.05, 1.0), description="area of the random crop")
    ratio: tuple[float, float] = Field((3 / 4, 4 / 3), description="aspect ratio of the random crop")
    flip: Annotated[float, Field(ge=0, le=1)] = Field(0.5, description="probability of a horizontal flip")
    resize: Annotated[float, Field(ge=1)] = Field(256 / 224, description="test view: short side over crop size")
    test_interpolation: Literal["bicubic", "bilinear"] = "bicubic"
    normalize: Literal["backbone", "none"] = Field("backbone", description="none: inputs in [0, 1], as in the paper")

    @model_validator(mode="after")
    def _ordered(self) -> Views:
        for name in ("scale", "ratio"):
            low, high = getattr(self, name)
            if not 0 < low <= high:
                raise ValueError(f"{name}: expected 0 < low <= high, got ({low}, {high})")
        if self.scale[1] > 1:
            raise ValueError(f"scale: a crop cannot be larger than its image, got {self.scale[1]}")
        return self


class Data(Strict):
    """Which images, in which order, in which tasks."""

    source: str = Field("glyphs", description="glyphs, cifar100, imagenet-r, domainnet, folder:PATH, parquet:PATH")
    root: str | None = Field(None, description="where the data set lies; else $ZOFC_DATA/<name>")
    increment: Positive = Field(10, description="classes per task")
    first: Positive | None = Field(None, description="classes in the first task, if not `increment`")
    classes: Positive | None = Field(None, description="use only the first n classes of the order")
    order_seed: int | None = Field(None, description="seed of the class order, if not the run's seed")
    per_class: Positive | None = Field(None, description="training images per class, all by default")
    test_per_class: Positive | None = Field(None, description="test images per class, all by default")
    test_fraction: Fraction = Field(0.2, description="held out where a source has no test set")
    skip_broken: bool = Field(False, description="leave out images that cannot be decoded")
    joint: bool = Field(False, description="all classes in one task (the upper anchor), evaluated per task")
    then: tuple[str, ...] = Field((), description="sources whose classes follow, each as one further task")


class Backbone(Strict):
    """The frozen vision transformer."""

    name: str = Field("embedded", description="embedded, a timm ViT name, or a local .safetensors/.npz file")
    architecture: str | None = Field(None, description="timm name for a local file that does not describe itself")
    pretrained: bool = Field(True, description="false: random weights (tests, ablations)")
    checksum: str | None = Field(None, description="sha256 that a local weight file must have")


class Peft(Strict):
    """The small module beside the frozen blocks."""

    kind: str = "adapter"
    rank: Positive = 5
    blocks: str | tuple[int, ...] = Field("first 5", description="all, first N, last N, or a list of block numbers")
    scale: float = 0.1


class Head(Strict):
    kind: Literal["cosine", "linear"] = "cosine"


class Method(Strict):
    """What is trained and what the loss is."""

    name: str = "adapter"
    mask: bool = Field(True, description="false: old classes stay in the loss (sequential fine-tuning, the lower anchor)")
    prototypes: bool = Field(False, description="replace the trained rows by class means after each task")


class Group(Strict):
    """How one group of parameters is moved. Zeroth-order keys are unused when order is first, and the reverse."""

    order: Literal["first", "zeroth"] = "first"
    epochs: Positive = 10
    optimizer: Literal["sgd", "adam", "adamw", "sign"] = "sgd"
    lr: Annotated[float, Field(ge=0)] = 0.01
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    schedule: Literal["constant", "cosine"] = "constant"
    min_lr: Annotated[float, Field(ge=0)] = Field(0.0, description="where the cosine ends")
    clip: Annotated[float, Field(gt=0)] | None = Field(None, description="largest L2 norm of the (estimated) gradient")
    estimator: str = "spsa"
    queries: Positive = Field(4, description="directions per step (Q)")
    epsilon: Annotated[float, Field(gt=0)] = Field(1e-3, description="length of the finite difference")
    directions: Literal["rademacher", "gaussian"] = "rademacher"
    chunk: Positive = Field(1, description="perturbed points evaluated in one forward pass; 1 needs the least memory")
    micro_batch: Positive | None = Field(None, description="images per forward pass of a query, all by default")


class Training(Strict):
    batch_size: Positive = 48
    eval_batch_size: Positive = 128
    device: str = Field("auto", description="auto, cpu, cuda, cuda:N, mps")
    threads: Positive | None = Field(None, description="CPU threads, torch's choice by default")
    loading: Literal["auto", "workers", "device"] = Field("auto", description="per image on CPU, or batched on the device")
    workers: Annotated[int, Field(ge=0)] = Field(2, description="loading processes where images are decoded one by one")
    checkpoint_minutes: Annotated[float, Field(gt=0)] = 10.0
    loggers: tuple[str, ...] = Field((), description="tensorboard, wandb, mlflow")


class Paper(Strict):
    """Which printed numbers a recipe reproduces, so that `compare` can show ours minus the paper's."""

    table: str
    row: str
    column: str


class Recipe(Strict):
    """One run, complete."""

    name: str = "unnamed"
    title: str | None = Field(None, description="what tables and plots call it")
    preset: Literal["paper", "controlled", "released"] = "paper"
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 1993
    method: Method = Method()
    backbone: Backbone = Backbone()
    data: Data = Data()
    views: Views = Views()
    peft: Peft = Peft()
    head: Head = Head()
    optimize: dict[str, Group] = Field(default_factory=dict)
    training: Training = Training()
    paper: Paper | None = None
