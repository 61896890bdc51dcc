"""What the API takes and answers."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from zofc.limits import CLASS_NAME_LETTERS
from zofc.teach.state import LessonKind


class Problem(BaseModel):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    remedy: str = Field(description="what to do about it")


class Limits(BaseModel):
    """The most that a request may bring."""

    files: int
    file_bytes: int
    request_bytes: int
    pixels: int
    images_per_class: int
    predict_files: int


class LessonStatus(BaseModel):
    """Where the present lesson stands."""

    number: int
    phase: Literal["before", "features", "adapter", "readout", "testing"]
    step: int
    steps: int | None
    loss: float | None = Field(description="of the step; none where nothing is trained step by step")
    accuracy: float | None = Field(description="percent of the training pictures")
    held_back: float | None = Field(description="percent of the held-back pictures: before the lesson, then after it")
    right: int | None = Field(description="of the held-back pictures")
    tested: int | None = Field(description="held-back pictures")
    seconds_left: float | None = Field(description="of the whole lesson; none while it is not known")


class Status(BaseModel):
    """The run that is taught, and what the server allows."""

    version: str
    run: str
    learner: str
    backbone: str
    device: str
    classes: int
    lesson: LessonStatus | None
    limits: Limits
    warnings: list[str]
    can_undo: bool
    revision: int = Field(description="grows with every change of classes, pictures and lessons")


class ClassName(BaseModel):
    """A name for a class."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=10 * CLASS_NAME_LETTERS)


class ClassInfo(BaseModel):
    """A class and its pictures."""

    id: str
    name: str
    images: int
    held_back: int
    pending: int = Field(description="pictures that no lesson has used yet")
    removed_pending: int = Field(description="removed pictures that the model still rests on")
    gallery: str = Field(description="another one whenever the pictures of the class change")
    learned: bool
    accuracy: float | None = Field(description="percent of the held-back pictures")
    right: int | None = Field(description="of the held-back pictures that were tested")
    tested: int | None = Field(description="held-back pictures, when the model was last measured")


class ImageInfo(BaseModel):
    """A picture of a class."""

    id: str
    held_back: bool
    learned: bool


class Added(BaseModel):
    """The id of a picture that is kept."""

    id: str


class Refused(BaseModel):
    """A file that was refused."""

    name: str
    reason: str


class Upload(BaseModel):
    """What became of uploaded files."""

    added: list[Added]
    present: list[Added] = Field(description="that the class had before")
    refused: list[Refused]


class LessonNumber(BaseModel):
    """The number of a lesson."""

    number: int


class LessonInfo(BaseModel):
    """A lesson of the past; accuracies in percent of the held-back pictures, by class id, and how many of them were
    tested and right, which older lessons do not tell."""

    number: int
    kind: LessonKind
    classes: list[str]
    images: int
    seconds: float
    accuracy_before: dict[str, float | None]
    accuracy_after: dict[str, float | None]
    right_before: dict[str, int]
    right_after: dict[str, int]
    tested: dict[str, int]
    finished: str
    undone: bool
    notices: list[str]


class LessonFailure(BaseModel):
    """A lesson that failed; the model is as it was before it."""

    number: int
    title: str
    detail: str


class AnswerInfo(BaseModel):
    """A class with its calibrated probability."""

    model_config = ConfigDict(populate_by_name=True)
    name: str = Field(serialization_alias="class", validation_alias="class")
    probability: float


class PredictionInfo(BaseModel):
    """The most likely classes of a picture."""

    name: str
    answers: list[AnswerInfo]
    none_of_these: bool


class PredictionError(BaseModel):
    """A file that could not be answered."""

    name: str
    error: str


class EvaluationInfo(BaseModel):
    """Accuracy on the held-back pictures, in percent, by class id."""

    accuracy: float | None
    classes: dict[str, float | None]
    right: dict[str, int]
    tested: dict[str, int]
    images: int
    calibration_error: float | None


class RunInfo(BaseModel):
    """A run folder beside this one."""

    name: str
    title: str
    classes: int | None
    current: bool
