"""Starting and stopping: the run folder to teach, a free port, the address with its token, the browser."""

from __future__ import annotations

import os
import socket
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from zofc.advice.choice import choose_recipe
from zofc.errors import RecipeError, RunError, WeightsError
from zofc.learner import Learner
from zofc.learner.changes import folder_beside
from zofc.model.backbone import EMBEDDED
from zofc.runfolder import open_run
from zofc.runfolder.create import is_free
from zofc.runfolder.run import Run
from zofc.teach.lessons import Teacher
from zofc.teach.security import Access, is_everywhere, is_local, own_addresses
from zofc.teach.server import make_app
from zofc.teach.stopping import StoppableServer, stopped_by_signals
from zofc.teach.store import PictureStore
from zofc.teach.tokens import kept_token, new_token

FIRST_RUN = Path("runs/taught")
FIRST_PORT = 8321
TOKEN_VARIABLE = "ZOFC_TEACH_TOKEN"
PORTS_TRIED = 20
CHARACTERS_ONLY = (
    "the embedded backbone was trained on characters and knows little of photographs; give a file of weights: "
    "zofc teach backbone.name=FILE (see the guide to weights)"
)
Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """How the server is started."""

    host: str = "127.0.0.1"
    port: int | None = None  # None: the first free one
    browser: bool = True
    api_only: bool = False
    device: str | None = None
    new_token: bool = False  # in place of the one that the run folder keeps


def prepare_run(path: Path | None, overrides: Sequence[str], say: Say) -> Path:
    """The run folder to teach: a saved or taught one itself, a copy of one that was trained, or a new one."""
    if path is not None and Run(path).exists:
        if overrides:
            raise RecipeError(f"settings are for new runs; {path} has its own: {overrides[0]}")
        if open_run(path).saved:
            return path
        folder = folder_beside(path)
        learner = Learner.load(path)
        learner.recipe = learner.recipe.model_copy(update={"name": f"{learner.recipe.name}+", "paper": None})
        learner.save(folder)
        say(f"{path} stays as it is; what you teach goes to {folder}")
        return folder
    if path is None:
        path = FIRST_RUN if is_free(FIRST_RUN) else folder_beside(FIRST_RUN)
    elif not is_free(path):
        raise RunError(f"{path} is not empty and no run folder; choose another")
    for text in _begin_run(path, overrides):
        say(text)
    return path


def _begin_run(path: Path, overrides: Sequence[str]) -> Sequence[str]:
    """A new run with the recommended learner, and why it is that one."""
    try:
        choice = choose_recipe(None, overrides)
    except WeightsError:
        if any(word.startswith("backbone.") for word in overrides):
            raise
        choice = choose_recipe(None, [*overrides, f"backbone.name={EMBEDDED}"])  # no weights, and no network
    Learner(choice.recipe).save(path)
    return choice.reasons


def serve(run: Path, options: Options, say: Say) -> None:
    """Teach a run until the user stops the server."""
    store = PictureStore(run)
    with store.opened(), _listening(options) as listener:
        teacher = Teacher.open(store, options.device)
        warnings = [CHARACTERS_ONLY] if teacher.learner.model.backbone.name == EMBEDDED else []
        access = Access(options.host, listener.getsockname()[1], _token(store, options))
        server = StoppableServer(make_app(teacher, access, warnings, page=not options.api_only))

        def stop() -> None:
            server.end()
            teacher.end()

        with stopped_by_signals(stop, lambda: say(_last_words(run))), _opened_page(store, access, options) as url:
            for text in (*warnings, *_exposure(options), *_set_aside(store)):
                say(text)
            others = _addresses(access)[1:]
            if options.api_only:
                say(f"API: {_addresses(access)[0]}api/v1/  token: {access.token}")
            else:
                say(f"open: {url}")
            if others:
                say(f"from other machines: {'  '.join(one + _entry(access, options) for one in others)}")
            say(f"teaching {run}; Ctrl-C stops. To go on later: zofc teach {run}")
            try:
                server.run(sockets=[listener])
            finally:
                teacher.stop()
                say(_last_words(run))


def _last_words(run: Path) -> str:
    return f"stopped; all that was taught is in {run}"


@contextmanager
def _opened_page(store: PictureStore, access: Access, options: Options) -> Iterator[str]:
    """Open the page in the browser, by a file that only the user can read: command lines are read by everyone."""
    url = _addresses(access)[0] + _entry(access, options)
    if not options.browser or options.api_only:
        yield url
        return
    try:
        webbrowser.open(store.write_link(url).resolve().as_uri())
        yield url
    finally:
        store.remove_link()


def _token(store: PictureStore, options: Options) -> str:
    """The token that the user sets, or that the run folder keeps. One that the network can read, for it is not
    encrypted, is never kept."""
    if given := os.environ.get(TOKEN_VARIABLE):
        if options.new_token:
            raise RunError(f"{TOKEN_VARIABLE} sets the token; unset it, or leave out --new-token")
        return given
    return kept_token(store.folder, options.new_token) if is_local(options.host) else new_token()


def _exposure(options: Options) -> Iterator[str]:
    """What a host opens to others, said aloud."""
    if not is_local(options.host):
        everywhere = is_everywhere(options.host)
        who = "every machine that can reach this one" if everywhere else f"all who reach {options.host}"
        yield (
            f"Warning: --host {options.host} opens this server to {who}, over HTTP that others can read. Whoever has "
            "the token can teach, see and remove all pictures"
        )


def _set_aside(store: PictureStore) -> Iterator[str]:
    if store.set_aside:
        yield (
            f"Note: {store.set_aside} pictures were never confirmed, because the server was killed, or taught.json is "
            f"an older one. They are in {store.unconfirmed}; add them again or delete them"
        )


def _addresses(access: Access) -> list[str]:
    """Where the server can be opened: on this machine first."""
    hosts = [f"[{host}]" if ":" in host else host for host in own_addresses(access.host)]
    return [f"http://{host}:{access.port}/" for host in hosts]


def _entry(access: Access, options: Options) -> str:
    return "api/v1/" if options.api_only else f"?token={access.token}"


@contextmanager
def _listening(options: Options) -> Iterator[socket.socket]:
    """A socket on the port that was asked for, or on the first free one."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    ports = [options.port] if options.port is not None else [*range(FIRST_PORT, FIRST_PORT + PORTS_TRIED), 0]
    for port in ports:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((options.host, port))
        except OSError as error:
            listener.close()
            if port == ports[-1]:
                what = f"{options.host}:{port} cannot be served: {error.strerror}"
                raise RunError(f"{what}; choose another with --port or --host") from error
            continue
        with listener:
            yield listener
        return
