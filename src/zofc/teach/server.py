"""The application: routes of the API and of the page. Each route checks, calls the teacher and describes the result."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.responses import FileResponse, Response, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp

import zofc
from zofc import limits
from zofc.teach import models
from zofc.teach.answers import Answering
from zofc.teach.downloads import bundle_zip, run_zip, runs_beside
from zofc.teach.lessons import Teacher
from zofc.teach.openapi import STREAM, binary, describe_api
from zofc.teach.pictures import Thumbnails, gallery_digest, original
from zofc.teach.problems import Missing, handle_errors
from zofc.teach.progress import LessonProgress
from zofc.teach.scores import Scores
from zofc.teach.security import Access, Guard
from zofc.teach.state import Lesson, Picture, TaughtClass
from zofc.teach.uploads import BODY, content, file_name, uploaded

PREFIX = "/api/v1"
PAGE_FILES = Path(str(files("zofc.teach") / "page"))
PAGE_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}
POLL = 0.1  # seconds between looks at a lesson
HEARTBEAT = 15.0  # seconds after which a silent stream says that it lives

api = APIRouter(prefix=PREFIX)


def teacher_of(request: Request) -> Teacher:
    """The teacher of an application."""
    found: Teacher = request.app.state.teacher
    return found


TheTeacher = Annotated[Teacher, Depends(teacher_of)]


def make_app(teacher: Teacher, access: Access, warnings: list[str] | None = None, page: bool = True) -> ASGIApp:
    """The application for a teacher, guarded."""
    app = FastAPI(
        title="zofc teach", version=zofc.__version__, openapi_url=f"{PREFIX}/openapi.json", docs_url=None,
        redoc_url=None, description="Teach a model classes of pictures, one lesson after another.",
    )  # fmt: skip
    app.state.teacher, app.state.warnings = teacher, warnings or []
    app.state.answering, app.state.thumbnails = Answering(teacher), Thumbnails(teacher.store)
    handle_errors(app)
    app.include_router(api)
    describe_api(app)
    if page:
        app.add_api_route("/", _page, include_in_schema=False)
        app.add_api_route("/page/{name}", _page, include_in_schema=False)
    return Guard(app, access)


def _page(name: str = "index.html") -> Response:
    """A file of the page, if its name is one of theirs."""
    known = {file.name: file for file in PAGE_FILES.iterdir() if file.suffix in PAGE_TYPES}
    if name not in known:
        raise Missing("there is no such file", "Open the address that zofc teach printed.")
    return FileResponse(known[name], media_type=PAGE_TYPES[known[name].suffix])


# -- status ----------------------------------------------------------------------------------------------------------


@api.get("/status")
def status(request: Request, teacher: TheTeacher) -> models.Status:
    """The run that is taught, and what the server allows."""
    learner, running = teacher.learner, teacher.running
    backbone = learner.model.backbone.name
    return models.Status(
        version=zofc.__version__,
        run=str(teacher.store.run),
        learner=learner.recipe.title or learner.recipe.name,
        backbone=Path(backbone).name if Path(backbone).exists() else backbone,
        device=str(learner.model.device),
        classes=len(teacher.store.taught.present()),
        lesson=None if running is None else models.LessonStatus(**running.describe()),
        limits=models.Limits(
            files=limits.UPLOAD_FILES,
            file_bytes=limits.UPLOAD_FILE_BYTES,
            request_bytes=limits.UPLOAD_BYTES,
            pixels=limits.UPLOAD_PIXELS,
            images_per_class=limits.PICTURES_PER_CLASS,
            predict_files=limits.PREDICT_FILES,
        ),
        warnings=[*request.app.state.warnings, *teacher.warnings],
        can_undo=teacher.undoable is not None,
        revision=teacher.store.revision,
    )


@api.get("/runs")
def runs(teacher: TheTeacher) -> list[models.RunInfo]:
    """The run folders beside this one."""
    return runs_beside(teacher.store.run)


# -- classes ---------------------------------------------------------------------------------------------------------


def _describe(teacher: Teacher, one: TaughtClass) -> models.ClassInfo:
    taught = teacher.store.taught
    pictures, measured = taught.of_class(one.id), taught.measured()
    return models.ClassInfo(
        id=one.id,
        name=one.name,
        images=len(pictures),
        held_back=sum(picture.held_back for picture in pictures),
        pending=sum(picture.pending for picture in pictures),
        removed_pending=sum(picture.owner == one.id for picture in taught.to_unlearn()),
        gallery=gallery_digest(pictures),
        learned=one.learned is not None,
        accuracy=measured and measured.accuracy_after.get(one.id),
        right=measured and measured.right_after.get(one.id),
        tested=measured and measured.tested.get(one.id),
    )


def _class(teacher: Teacher, number: str) -> TaughtClass:
    if (one := teacher.store.taught.find(number)) is None:
        raise Missing(f"there is no class {number[:20]}", "Ask for the classes anew.")
    return one


def _picture(teacher: Teacher, number: str) -> Picture:
    picture = teacher.store.taught.pictures.get(number)
    if picture is None or picture.removed or teacher.store.taught.find(picture.owner) is None:
        raise Missing("there is no such picture", "Ask for the pictures of its class anew.")
    return picture


@api.get("/classes")
def classes(teacher: TheTeacher) -> list[models.ClassInfo]:
    """All classes, in the order of their making."""
    return [_describe(teacher, one) for one in teacher.store.taught.present()]


@api.post("/classes", status_code=201)
def add_class(body: models.ClassName, teacher: TheTeacher) -> models.ClassInfo:
    """A new class, which has no pictures yet."""
    with teacher.store.change() as taught:
        made = taught.add_class(body.name)
    return _describe(teacher, made)


@api.patch("/classes/{number}")
def rename_class(number: str, body: models.ClassName, teacher: TheTeacher) -> models.ClassInfo:
    """Rename a class."""
    return _describe(teacher, teacher.rename(number, body.name))


@api.delete("/classes/{number}", status_code=204)
def forget_class(number: str, teacher: TheTeacher, for_good: bool = False) -> None:
    """Forget a class and its pictures; `for_good` also what could be undone."""
    teacher.forget(number, for_good)


# -- pictures --------------------------------------------------------------------------------------------------------


@api.get("/classes/{number}/images")
def images(number: str, teacher: TheTeacher) -> list[models.ImageInfo]:
    """The pictures of a class."""
    pictures = teacher.store.taught.of_class(_class(teacher, number).id)
    return [models.ImageInfo(id=one.id, held_back=one.held_back, learned=one.in_model) for one in pictures]


@api.post("/classes/{number}/images", openapi_extra=BODY)
async def add_images(number: str, request: Request, teacher: TheTeacher) -> models.Upload:
    """Add pictures to a class. Those that are `added` are safely on disk."""
    _class(teacher, number)
    async with uploaded(request, limits.UPLOAD_FILES) as parts:
        given = [(file_name(part), lambda part=part: content(part)) for part in parts]
        taken = await run_in_threadpool(teacher.store.add, number, given)
    return models.Upload(
        added=[models.Added(id=one) for one in taken.added],
        present=[models.Added(id=one) for one in taken.present],
        refused=[models.Refused(name=name, reason=reason) for name, reason in taken.refused],
    )


@api.get("/images/{number}", response_class=Response, responses=binary("image/*", "application/octet-stream"))
def image(
    number: str, request: Request, teacher: TheTeacher, size: Annotated[int | None, Query(ge=16, le=1024)] = None
) -> Response:
    """A picture as it was given, or with `size` as a JPEG that fits a square of so many pixels."""
    picture, thumbnails = _picture(teacher, number), request.app.state.thumbnails
    return original(teacher.store.path(picture)) if size is None else thumbnails.get(picture, size)


@api.delete("/images/{number}", status_code=204)
def remove_image(number: str, teacher: TheTeacher) -> None:
    """Remove a picture; one that was learned leaves the model with the next lesson."""
    teacher.store.remove(_picture(teacher, number).id)


# -- lessons ---------------------------------------------------------------------------------------------------------


def _lesson(lesson: Lesson) -> models.LessonInfo:
    return models.LessonInfo(**lesson.model_dump(include=set(models.LessonInfo.model_fields)))


@api.post("/lessons", status_code=202)
def begin_lesson(teacher: TheTeacher) -> models.LessonNumber:
    """Begin a lesson on all pictures that wait for one."""
    return models.LessonNumber(number=teacher.begin())


@api.get("/lessons")
def lessons(teacher: TheTeacher) -> list[models.LessonInfo]:
    """All lessons, oldest first."""
    return [_lesson(one) for one in teacher.store.taught.lessons if one.classes]


@api.delete("/lessons/current", status_code=202)
def cancel_lesson(teacher: TheTeacher) -> models.LessonNumber:
    """Cancel the lesson that is running; the model stays as it was."""
    return models.LessonNumber(number=teacher.cancel())


@api.post("/lessons/undo")
def undo_lesson(teacher: TheTeacher) -> models.LessonInfo:
    """Go back to the model before the last lesson; its pictures wait for a lesson again."""
    return _lesson(teacher.undo())


@api.get("/lessons/current/events", response_class=StreamingResponse, responses={200: {"content": {STREAM: {}}}})
def lesson_events(teacher: TheTeacher) -> StreamingResponse:
    """Follow the present lesson as server-sent events: `progress`, then `finished`, `failed` or `cancelled`."""
    if teacher.progress is None:
        raise Missing("no lesson is running", "Start one first.")
    return StreamingResponse(_events(teacher, teacher.progress), media_type=STREAM)


async def _events(teacher: Teacher, progress: LessonProgress) -> AsyncIterator[str]:
    seen, silent = -1, 0.0
    while progress.ended is None:
        if teacher.ending:
            return  # the page finds out what became of it when the server is back
        if progress.changes != seen:
            seen, silent = progress.changes, 0.0
            yield _event("progress", progress.describe())
        elif silent > HEARTBEAT:
            silent = 0.0
            yield ": still here\n\n"
        await asyncio.sleep(POLL)
        silent += POLL
    kind, fields = progress.ended
    yield _event(kind, fields)


def _event(kind: str, fields: object) -> str:
    return f"event: {kind}\ndata: {json.dumps(fields)}\n\n"


# -- answers ---------------------------------------------------------------------------------------------------------


@api.post("/predict", openapi_extra=BODY)
async def answer_pictures(
    request: Request,
    top: Annotated[int, Query(ge=1, le=100)] = 5,
    reject: Annotated[float, Query(gt=0, lt=1)] = 0.05,
) -> list[models.PredictionInfo | models.PredictionError]:
    """The most likely classes of pictures. A share `reject` of those of learned classes is taken for none of them."""
    answering: Answering = request.app.state.answering
    async with uploaded(request, limits.PREDICT_FILES) as parts:
        return await run_in_threadpool(answering.predict, parts, top, reject)


@api.post("/evaluate")
def measure(teacher: TheTeacher) -> models.EvaluationInfo:
    """Accuracy on the pictures that are held back from learning."""
    result = teacher.evaluate(teacher.learner)
    scores = Scores.of(result, teacher.store.taught.present())
    return models.EvaluationInfo(
        accuracy=None if result is None else result.accuracy,
        classes=scores.accuracy,
        right=scores.right,
        tested=scores.tested,
        images=0 if result is None else int(result.confusion.sum()),
        calibration_error=None if result is None else result.calibration_error,
    )


# -- downloads -------------------------------------------------------------------------------------------------------


@api.get("/export/run", response_class=FileResponse, responses=binary("application/zip"))
def download_run(teacher: TheTeacher, pictures: bool = True) -> FileResponse:
    """The run folder as a ZIP file, with or without the pictures."""
    teacher.catch_up()
    return run_zip(teacher.store, pictures)


@api.get("/export/bundle", response_class=FileResponse, responses=binary("application/zip"))
def download_bundle(teacher: TheTeacher, precision: str = "fp32") -> FileResponse:
    """The model as a bundle of ONNX graphs, in a ZIP file."""
    teacher.catch_up()
    return bundle_zip(teacher.store, precision)
