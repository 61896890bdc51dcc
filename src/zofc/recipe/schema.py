"""A recipe is the complete, validated description of a run.

YAML files may build on others (`extends: name` or a list of names, later ones win), carry `presets` (named
overlays, chosen with `preset=NAME`) and be changed from the command line (`optimize.peft.lr=0.02`). The
overlay lies over all that the files say, the command line over the overlay. What a registry must check (does
this method have that group?) is checked when the run is resolved, before any work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationInfo,
    field_validator,
)

from zofc import limits
from zofc.errors import RecipeError
from zofc.recipe.bounds import (
    BatchSize,
    Epochs,
    Epsilon,
    Factor,
    FolderName,
    Fraction,
    ImageSide,
    PathText,
    PerClass,
    Positive,
    PromptTokens,
    Queries,
    Rank,
    RankWait,
    Resize,
    Seed,
    SignedFactor,
    StartEpoch,
    Threads,
    Title,
    Weight,
    Workers,
)
from zofc.recipe.check import validate
from zofc.recipe.layers import Key, Layer, Origin, Sources
from zofc.units import parse_bytes

Preset = Literal["paper", "controlled", "released", "fast"]
PRESETS: tuple[str, ...] = get_args(Preset)
METHOD_SECTIONS = ("lae", "l2p", "coda", "ease", "inflora", "ridge")  # every recipe of version 0.1 holds them

PAPER_BACKBONE = "vit_base_patch16_224.augreg_in21k"
WEIGHT_SUFFIXES = (".safetensors", ".npz", ".pth", ".pt", ".bin", ".ckpt", ".pth.tar")


def is_weights_path(backbone: str) -> bool:
    """Whether a backbone's name is a path: timm's names have neither a slash nor a file's suffix."""
    return backbone.endswith(WEIGHT_SUFFIXES) or "/" in backbone


class Strict(BaseModel):
    """No unknown keys, no silent conversions, no changes after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


_Section = TypeVar("_Section", bound=Strict)
SectionValues = Annotated[
    dict[str, Any], BeforeValidator(lambda value: value.model_dump() if isinstance(value, Strict) else value)
]


class ViewSettings(Strict):
    """How images become model inputs; sizes follow the backbone (crop s, resize s·256/224)."""

    augment: Literal["crop-flip", "none"] = Field("crop-flip", description="none: the test view also in training")
    scale: tuple[float, float] = Field((0.05, 1.0), description="area of the random crop")
    ratio: tuple[float, float] = Field((3 / 4, 4 / 3), description="aspect ratio of the random crop")
    flip: Annotated[float, Field(ge=0, le=1)] = Field(0.5, description="probability of a horizontal flip")
    resize: Resize = Field(256 / 224, description="test view: short side over crop size")
    test_interpolation: Literal["bicubic", "bilinear"] = Field("bicubic", description="test view: how it is resized")
    normalize: Literal["backbone", "paper", "none"] = Field(
        "backbone", description="none: inputs in [0, 1]; paper: none for the paper's backbone, its own for any other"
    )

    @field_validator("scale", "ratio")
    @classmethod
    def _ordered(cls, value: tuple[float, float], info: ValidationInfo) -> tuple[float, float]:
        low, high = value
        if not 0 < low <= high:
            raise ValueError(f"expected 0 < low <= high, got [{low}, {high}]")
        if info.field_name == "scale" and high > 1:
            raise ValueError(f"expected at most 1, since a crop lies within its image, got [{low}, {high}]")
        if info.field_name == "ratio" and not 1 / limits.CROP_ASPECT <= low <= high <= limits.CROP_ASPECT:
            limit = f"{1 / limits.CROP_ASPECT:g} to {limits.CROP_ASPECT:g}"
            raise ValueError(f"expected ratios from {limit}, got [{low}, {high}]")
        return value


class DataSettings(Strict):
    """Which images, in which order, in which tasks."""

    source: PathText = Field("glyphs", description="glyphs, cifar100, imagenet-r, domainnet, folder:PATH, parquet:PATH")
    root: PathText | None = Field(None, description="where the data set lies; else $ZOFC_DATA/<name>")
    increment: Positive = Field(10, description="classes per task, unless a task is a domain")
    first: Positive | None = Field(None, description="classes in the first task, if not `increment`")
    classes: Positive | None = Field(
        None, description="use only the first n classes of the order (in every domain the same)"
    )
    order_seed: Seed | None = Field(None, description="seed of the class order, if not the run's seed")
    per_class: PerClass | None = Field(None, description="training images per class, all by default")
    test_per_class: PerClass | None = Field(None, description="test images per class, all by default")
    test_fraction: Fraction = Field(0.2, description="of each class, held out where a source has no test set")
    skip_broken: bool = Field(False, description="leave out images that cannot be decoded")
    by: Literal["class", "domain", "domain-class"] = Field(
        "class",
        description="domain: each task is all classes in one more domain, under the same labels; "
        "domain-class: each pair of domain and class is a class (sketch/dog), each task those of one domain",
    )
    joint: bool = Field(False, description="all classes in one task (the upper anchor), evaluated per task")
    then: tuple[PathText, ...] = Field((), description="sources whose classes follow, each as one further task")

    @property
    def planned_tasks(self) -> int | None:
        """How many tasks there will be, where the recipe says so by itself. Tasks learned later (`then`) do not count:
        a run that is continued must have begun as it did."""
        if self.joint:
            return 1
        if self.classes is None or self.by != "class":
            return None
        rest = max(self.classes - (self.first or self.increment), 0)
        return 1 + math.ceil(rest / self.increment)


class BackboneSettings(Strict):
    """The frozen vision transformer."""

    name: PathText = Field(
        "embedded",
        description="embedded, a timm ViT name, a weight file (.safetensors, .pth, .pt, .bin, .npz) or a folder of "
        "Hugging Face or timm, also below $ZOFC_DATA",
    )
    architecture: str | None = Field(None, description="timm name for local weights that do not describe themselves")
    pretrained: bool = Field(True, description="false: random weights (tests, ablations)")
    checksum: str | None = Field(
        None, description="sha256 that a local weight file must have; of a folder, see the guide"
    )
    image_size: ImageSide | None = Field(
        None, description="pixels a side that it takes, if not its own; positions are resampled"
    )

    @property
    def is_the_papers(self) -> bool:
        """Whether these are the weights of the published results, which were fed inputs in [0, 1]."""
        return PAPER_BACKBONE in (self.name, self.architecture)


class PeftSettings(Strict):
    """The small module beside the frozen blocks."""

    kind: str = Field("adapter", description="adapter, adaptformer, lora, prefix")
    rank: Rank = Field(5, description="width of the bottleneck; a prefix has none")
    blocks: str | tuple[int, ...] = Field("first 5", description="all, first N, last N, or a list of block numbers")
    scale: SignedFactor | Literal["learned"] = Field(
        0.1, description="factor of what it adds; learned: one for each block (adapters)"
    )
    beside: Literal["mlp", "attention"] = Field("mlp", description="adapter: which sub-layer it stands beside")
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(0.1, description="adaptformer: inside, first order only")
    length: PromptTokens = Field(10, description="prefix: learned keys and values per block")
    compensated: bool = Field(True, description="prefix: the attention paid to it sums to one")


class HeadSettings(Strict):
    """The classifier, which grows with the classes."""

    kind: Literal["cosine", "linear"] = Field("cosine", description="cosine: of feature and row, with a learned scale")
    init: Literal["auto", "uniform", "torch", "trunc-normal", "normal", "zeros", "means"] = Field(
        "auto",
        description="what new rows start from; auto: as the method's authors; uniform: ±√(3/d), cosine ±1/√d; torch: "
        "nn.Linear's ±1/√d, also for the bias, else zero; trunc-normal: deviation 0.02; normal: 0.001; means: the mean "
        "features of their classes",
    )
    scale: Factor = Field(1.0, description="cosine: what its scale starts from; linear: of rows that start at means")


class MethodSettings(Strict):
    """What is trained and what the loss is."""

    name: str = Field("adapter", description="one of `zofc list methods`")
    mask: bool = Field(
        True, description="false: old classes stay in the loss (sequential fine-tuning, the lower anchor)"
    )
    prototypes: bool = Field(False, description="replace the trained rows by class means after each task")
    readout: Literal["rows", "ridge"] = Field(
        "rows", description="ridge: answer by regression in closed form on the (adapted) features of every task"
    )
    variant: Literal["official", "zofc"] = Field(
        "official", description="official: the authors' method; zofc: what the released baselines do instead"
    )


class Group(Strict):
    """How one group of parameters is moved. Keys of the other order are unused."""

    order: Literal["first", "zeroth"] = Field(
        "first", description="first: by gradients; zeroth: by an estimate of them"
    )
    epochs: Epochs = Field(10, description="of each task, `start` among them")
    start: StartEpoch = Field(0, description="epochs before the group begins to move")
    steps: Positive | None = Field(None, description="most steps of a task, which then has fewer, whole epochs")
    tasks: Positive | None = Field(None, description="tasks in which the group moves, all by default; then it is fixed")
    optimizer: Literal["sgd", "adam", "adamw", "sign"] = Field(
        "sgd", description="what makes a step of the (estimated) gradient; sign: SGD on its signs"
    )
    lr: Weight = Field(0.01, description="learning rate in the first epoch of a task")
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(0.9, description="of sgd and sign")
    weight_decay: Weight = Field(0.0, description="adamw: apart from the gradient; else in it")
    schedule: Literal["constant", "cosine", "cosine99"] = Field(
        "constant", description="cosine99: CODA-Prompt's and InfLoRA's, to 1.6 % of the rate in the last epoch"
    )
    min_lr: Weight = Field(0.0, description="cosine: the rate it falls to")
    clip: Factor | None = Field(None, description="largest L2 norm of the (estimated) gradient")
    estimator: str = Field("spsa", description="spsa (two-point differences), one_sided, forward_gradient")
    queries: Queries = Field(4, description="directions per step (Q)")
    epsilon: Epsilon = Field(1e-3, description="length of the finite difference")
    directions: Literal["rademacher", "gaussian", "sphere"] = Field(
        "rademacher", description="how they are drawn: signs, normal numbers, or points of a sphere of radius √d"
    )
    per: Literal["batch", "image"] = Field("batch", description="image: a direction of its own for each image")
    length: Literal["own", "zeroth"] = Field(
        "own", description="zeroth: steps of first order, as long as those of zeroth order with these settings"
    )
    chunk: Queries = Field(1, description="perturbed points evaluated in one forward pass; 1 needs the least memory")
    micro_batch: BatchSize | None = Field(None, description="images per pass through the backbone, all by default")

    def for_batches(self, batches: int) -> Group:
        """The plan for a task whose epochs have so many batches: no more whole epochs than `steps` allows."""
        if self.steps is None:
            return self
        epochs = min(self.epochs, max(self.start + 1, self.steps // max(batches, 1)))
        return self.model_copy(update={"epochs": epochs})

    @field_validator("min_lr")
    @classmethod
    def _below_lr(cls, value: float, info: ValidationInfo) -> float:
        lr, schedule = info.data.get("lr"), info.data.get("schedule")
        if schedule == "cosine" and lr is not None and value > lr:
            raise ValueError(f"expected at most the group's lr, {lr}, or the cosine would rise; got {value}")
        return value

    @field_validator("length")
    @classmethod
    def _shared_directions(cls, value: str, info: ValidationInfo) -> str:
        if value == "zeroth" and info.data.get("order") == "zeroth":
            raise ValueError("expected own for a group of zeroth order, whose steps have that length already")
        if value == "zeroth" and info.data.get("per") == "image":
            raise ValueError("expected own where per is image: that length needs directions shared by the batch")
        return value


class TrainingSettings(Strict):
    """How a run is made: batches, device, precision, memory, logs."""

    batch_size: BatchSize = Field(48, description="images of a training step")
    eval_batch_size: BatchSize = Field(128, description="images at a time where nothing is trained")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:N, mps")
    threads: Threads | None = Field(None, description="CPU threads, torch's choice by default")
    precision: Literal["fp64", "fp32", "tf32", "bf16", "fp16"] = Field(
        "fp32",
        description="of the frozen weights and the activations; what is trained stays fp32, under fp64 all is fp64",
    )
    memory: str | None = Field(
        None,
        description="most for weights and a step or scoring: 400MB, 1.5GiB or auto; picks micro_batch and chunk",
    )
    allow_noisy_differences: bool = Field(False, description="finite differences in less than fp32")
    divide: Literal["images", "queries"] = Field(
        "images", description="what the processes of torchrun divide: the images of a batch, or the queries of a step"
    )
    check_ranks: Positive = Field(100, description="steps between two checks that torchrun's processes agree")
    rank_wait: RankWait = Field(10.0, description="minutes that torchrun's processes wait for each other's answers")
    graphs: bool = Field(True, description="on CUDA, record a step once and replay it")
    compile: bool = Field(False, description="first order: blocks compiled by torch (a minute, and a C++ compiler)")
    recompute: bool = Field(False, description="first order: keep one activation a block, compute the rest again")
    deterministic: bool = Field(
        True,
        description="kernels with the same result each time, where there are; on CUDA attention's gradients have none",
    )
    loading: Literal["auto", "workers", "device"] = Field(
        "auto", description="per image on CPU, or batched on the device"
    )
    workers: Workers = Field(2, description="loading processes where images are decoded one by one")
    cache: Literal["auto", "on", "off"] = Field(
        "auto",
        description="keep decoded images for later runs (see `zofc cache`); auto: 1,000 images and more, up to 2 GB",
    )
    checkpoint_minutes: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="time between two checkpoints of a task; by default half a minute, or more if they would take over "
        "1 % of the time",
    )
    check_adapter: bool = Field(
        True, description="after each task, warn if its classes are told apart worse with the adapter than without"
    )
    fixed_batches: bool = Field(
        False,
        description="compute features of learned images in batches of a fixed size, so that regressions "
        "and class means do not depend on how images are divided into tasks",
    )
    calibrate: bool = Field(
        True, description="after each task, fit the temperature of probabilities on images of the task"
    )
    keep_features: bool = Field(
        False,
        description="keep features of test images with the run, where they are final: a resumed run and zofc learn "
        "compute none of them again",
    )
    journal: bool = Field(
        True, description="keep the coefficients of every zeroth-order step with the run, which zofc replay reads"
    )
    keep_tasks: bool = Field(False, description="keep what was trained after each task, which zofc flatness measures")
    loggers: tuple[str, ...] = Field((), description="tensorboard, wandb, mlflow: extras, to be installed apart")

    @field_validator("memory", mode="before")
    @classmethod
    def _a_size(cls, value: object) -> object:
        if isinstance(value, (bool, int, float)):
            raise ValueError(f"expected a size such as 400MB, or auto, got {str(value).lower()}")
        if isinstance(value, str) and value != "auto":
            parse_bytes(value)
        return value


class PaperCell(Strict):
    """Which printed numbers a recipe reproduces, so that `compare` can show ours minus the paper's."""

    table: str = Field(description="main, inc10, …: a table of zofc/paper.json")
    row: str = Field(description="its row")
    column: str = Field(description="its column")


class Recipe(Strict):
    """One run, complete."""

    # settings that a method declares stand under its name, `l2p: {pool: 10}`: plain values, until `section` checks them
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, SectionValues]
    _sources: Sources = PrivateAttr(default_factory=Sources)

    name: FolderName = Field("unnamed", description="what the run folder is called after; else that of the recipe file")
    title: Title | None = Field(None, description="what tables and plots call it")
    preset: Preset = Field("paper", description="which overlay of the recipe lies over it; few recipes have all")
    rates: Literal["recipe", "searched"] = Field(
        "recipe", description="searched: learning rates that were searched on the backbone, for the recipe's family"
    )
    seed: Seed = Field(1993, description="of class order, splits, initial values, batches, views and directions")
    method: MethodSettings = MethodSettings()
    backbone: BackboneSettings = BackboneSettings()
    data: DataSettings = DataSettings()
    views: ViewSettings = ViewSettings()
    peft: PeftSettings = PeftSettings()
    head: HeadSettings = HeadSettings()
    optimize: dict[str, Group] = Field(default_factory=dict)
    training: TrainingSettings = TrainingSettings()
    paper: PaperCell | None = None

    @field_validator("optimize")
    @classmethod
    def _sorted(cls, groups: dict[str, Group]) -> dict[str, Group]:
        """In the order of their names, so that equal recipes are equal in every respect."""
        return dict(sorted(groups.items()))

    @property
    def sections(self) -> dict[str, dict[str, Any]]:
        """The settings of methods, by method."""
        return dict(self.__pydantic_extra__)

    @property
    def origins(self) -> dict[Key, Origin]:
        """Where the settings of methods were written."""
        return self._sources.origins

    def written_at(self, origins: Mapping[Key, Origin]) -> Recipe:
        """The recipe, knowing where the settings of its methods were written."""
        self._sources = Sources({key: origin for key, origin in origins.items() if key and key[0] in self.sections})
        return self

    def section(self, name: str, model: type[_Section]) -> _Section:
        """The settings of a method as it declares them, defaults where the recipe says nothing."""
        values, problems = validate(model, Layer(self.name, dict(self.sections), self.origins).part(name))
        if values is None:
            raise RecipeError("\n".join(map(str, problems)))
        return values
