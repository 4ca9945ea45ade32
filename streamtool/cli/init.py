"""`streamtool init`: write a settings file for the model servers that answer.

The servers are asked what they are and which models they have; nothing is generated. Without a URL, the usual ports of
this machine are tried. The file explains the settings that are most often changed, and names the schema that lets an
editor complete them.
"""

import json
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import anyio
from attrs import frozen

from streamtool.asgi.types import SCOPE, ask, never_disconnects
from streamtool.cli.common import SETTINGS, Screen
from streamtool.cli.probe import ProbeFlags, count, name_of, printable, toml
from streamtool.core.errors import SettingsError, StreamtoolError, UpstreamError
from streamtool.core.json_value import Json
from streamtool.models.engines import HOSTED, MODELS, FoundEngine, members
from streamtool.protocols.shared import wire
from streamtool.settings import UpstreamSettings, load
from streamtool.settings.schema import TITLE, settings_schema
from streamtool.upstream import engines
from streamtool.upstream.app import OUTSIDE_VERSION, HttpUpstream, model_servers

USUAL: Final = (11434, 8080, 8000, 1234, 30000)
"""Ports of Ollama, llama.cpp, vLLM, LM Studio and SGLang."""
SCHEMA: Final = "streamtool.schema.json"
_LISTED: Final = 20
"""Maximum number of other models to list."""
_NO_CHAT: Final = ("embed", "rerank", "whisper")


@frozen
class FoundServer:
    """A server that answers."""

    name: str
    url: str
    engine: FoundEngine | None
    models: Sequence[str]

    @property
    def title(self) -> str:
        """The kind of server."""
        if self.url == "sample":
            return "the embedded sample model"
        return "a server of unknown kind" if self.engine is None else self.engine.title


@frozen
class InitFlags:
    """Arguments and flags of `streamtool init`."""

    url: str | None = None
    model: str | None = None
    key_env: str | None = None
    output: str = SETTINGS
    force: bool = False


def run(flags: InitFlags) -> None:
    """Write the files. Raises SettingsError if one exists, and UpstreamError if no server answers."""
    target = Path(flags.output)
    schema = target.with_name(SCHEMA)
    for path in (target, schema):
        if path.exists() and not flags.force and not (path == schema and _is_schema(path)):
            raise SettingsError(f"{path} exists; --force overwrites it", param=str(path))
    if flags.url is None and flags.key_env is not None:
        raise SettingsError("--key-env needs a URL: the key is sent to no other server", param="--key-env")
    if flags.url is None:
        upstreams = [ProbeFlags(f"http://127.0.0.1:{port}").upstream() for port in USUAL]
    else:
        upstreams = [ProbeFlags(flags.url, key_env=flags.key_env).upstream()]
    found = anyio.run(partial(find_servers, upstreams))
    if not found:
        asked = ", ".join(one.url for one in upstreams)
        raise UpstreamError(f"no model server answers at {asked}; start one, or pass its URL")
    text = settings_text(found, flags.model, flags.key_env)
    load(text, {name: value for name, value in os.environ.items() if name == flags.key_env})  # raises if unreadable
    _write(schema, schema_text())
    _write(target, text)
    screen = Screen()
    for one in found:
        screen.line(f"found     {one.title} at {one.url}, {count(len(one.models), 'model')}")
    screen.line("wrote     ", (str(target), "bold"), f" and {schema}, which completes it in editors")
    config = "" if flags.output == SETTINGS else f" --config {target}"
    screen.line("next      ", (f"streamtool serve{config}", "bold"))


def schema_text() -> str:
    """Return the schema of the settings file, as the command prints it."""
    return json.dumps(settings_schema(), ensure_ascii=False, indent=2) + "\n"


def _is_schema(path: Path) -> bool:
    """Return whether a file contains a schema of an earlier version, which may be replaced."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(told, dict) and told.get("title") == TITLE


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {error.strerror}", param=str(path)) from None


# --- the servers -----------------------------------------------------------------------------------------------------


async def find_servers(upstreams: Sequence[UpstreamSettings]) -> Sequence[FoundServer]:
    """Return the servers that answer, in the order of their upstreams, each with its own name."""
    answers: dict[str, tuple[FoundEngine | None, Sequence[str]]] = {}

    async def look(upstream: UpstreamSettings) -> None:
        if upstream.url == "sample":
            answers["sample"] = None, ["sample"]
            return
        app = HttpUpstream(upstream)
        (server,) = model_servers({"one": app}).values()
        try:
            host = HOSTED.get(urlsplit(upstream.url).hostname or "")
            engine = FoundEngine(host) if host else await engines.recognize_server(server)
            models = await _models(app, upstream)
        finally:
            await app.aclose()
        if engine is not None or models is not None:
            answers[upstream.url] = engine, models or ()

    async with anyio.create_task_group() as tasks:
        for upstream in upstreams:
            tasks.start_soon(look, upstream)
    found: list[FoundServer] = []
    for upstream in upstreams:
        if upstream.url in answers:
            engine, models = answers[upstream.url]
            name = name_of(upstream.url) if engine is None else engine.engine.name.lower().replace(".", "")
            name = "-".join(name.split())
            same = sum(one.name.rstrip("0123456789-") == name for one in found)
            found.append(FoundServer(f"{name}-{same + 1}" if same else name, upstream.url, engine, models))
    return found


async def _models(app: HttpUpstream, upstream: UpstreamSettings) -> Sequence[str] | None:
    """Return the names of the models that a server lists; None if it does not list any."""
    key = [] if upstream.key is None else [(b"authorization", b"Bearer " + upstream.key.encode())]
    for path, member in ((MODELS, "data.*.id"), ("/api/tags", "models.*.name")):
        try:
            with anyio.fail_after(engines.TIMEOUT):
                scope = {**SCOPE, OUTSIDE_VERSION: True}
                answer = await ask(app, scope, "GET", path, headers=key, receive=never_disconnects)
            told: Json = wire.decode_tolerant(answer.body) if answer.status == 200 else None
        except (StreamtoolError, ValueError, RecursionError, TimeoutError):
            continue
        names = [name for name in members(told, member) if isinstance(name, str) and name and _is_valid(name)]
        if names:
            return names
    return None


def _is_valid(name: str) -> bool:
    """Return whether a name can be written to a file and sent in a request: it contains no lone surrogates."""
    return not any("\ud800" <= char <= "\udfff" for char in name)


# --- the file --------------------------------------------------------------------------------------------------------


def settings_text(found: Sequence[FoundServer], model: str | None, key_env: str | None) -> str:
    """Return the settings file."""
    return "".join(f"{line}\n" for line in _lines(found, model, key_env))


def _lines(found: Sequence[FoundServer], model: str | None, key_env: str | None) -> Iterator[str]:
    yield f"#:schema {SCHEMA}"
    yield "# Settings of streamtool. `streamtool serve --check` checks them, `streamtool reload` applies them."
    yield ""
    yield "# host and port of the proxy; a host other than this machine requires client_keys"
    yield 'listen = "127.0.0.1:8700"'
    yield '# client_keys = ["env:TEAM_KEY"]'
    yield ""
    yield '# how tools reach the model. "emulate": as text; "native": unchanged; "rescue": unchanged, and calls in the'
    yield '# text are found too; "auto": as rescue until the server rejects tools'
    yield '# mode = "emulate"'
    yield "# keep each exchange in a folder, contents included, for `streamtool inspect`"
    yield '# recordings = "recordings"'
    for server in found:
        yield ""
        yield f"[upstream.{server.name}]"
        yield f"# {printable(_described(server))}"
        yield f"url = {toml(server.url)}"
        if key_env is not None:
            yield f"key = {toml(f'env:{key_env}')}"
    first = found[0]
    chosen = model or next((name for name in first.models if not any(word in name.lower() for word in _NO_CHAT)), None)
    yield ""
    if chosen is None:
        yield "# Request this model, whatever the client asks for:"
        yield "# [[model]]"
        yield '# match = "*"'
        yield '# use = "…"'
        return
    yield "# Request this model, whatever the client asks for. Without this table, the client chooses."
    yield "[[model]]"
    yield 'match = "*"'
    yield f"use = {toml(chosen)}"
    yield f"upstream = {toml(first.name)}"
    taught = load(f'[upstream.u]\nurl = "sample"\n[[model]]\nmatch = "*"\nuse = {toml(chosen)}').for_model(chosen)
    yield f"# taught format: {taught.format} ({taught.training.reason}); `streamtool eval` finds the best one"
    yield '# format = "auto"'
    others = [name for name in first.models if name != chosen]
    if others:
        more = f" and {len(others) - _LISTED} more" if len(others) > _LISTED else ""
        yield f"# other models: {printable(', '.join(others[:_LISTED]))}{more}"


def _described(server: FoundServer) -> str:
    return server.title if server.engine is None else f"{server.title}, {server.engine.shown_window('')}"
