"""The chat templates and response templates of models, and calibrations that no longer hold.

Both are read from files. Chat templates are also requested from upstreams that expose them.

Files are read once, when a middleware or transport is created. A template is requested from an upstream concurrently
with the first request, which does not wait for the template: that request relies on the model's name, later ones on the
template. `Proxy` requests templates on startup where possible. Failures are not reported as errors, because no client
requested the template, and the model's name serves as a fallback.

llama.cpp exposes the template at `GET /props` (`chat_template`, `chat_template_tool_use`; tools/server/README.md),
Ollama at `POST /api/show` (`template`; docs/api.md). Other servers do not expose it.

An upstream with a calibration is also asked for its version and its models. A calibration of another version or of
another model is not applied.
"""

import json
import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

import anyio
from anyio.abc import TaskGroup
from attrs import frozen

from statemachine.formats import FormatError
from streamtool.asgi.types import SCOPE, ASGIApp, ask, never_disconnects
from streamtool.core.clients import ANONYMOUS, HeaderPairs, client_of, entry_to_evict
from streamtool.core.errors import SettingsError, StreamtoolError
from streamtool.core.json_value import Json
from streamtool.models import response_templates
from streamtool.models.chat_templates import Recognised, recognise
from streamtool.models.response_templates import Described, as_recognised
from streamtool.protocols.shared import wire
from streamtool.settings import Calibration, ModelSettings, Settings, UpstreamSettings
from streamtool.upstream.engines import Engines
from streamtool.upstream.model_server import models_of, server_of

_log = logging.getLogger("streamtool")

TIMEOUT: Final = 5.0
"""Maximum number of seconds for an upstream to return a template."""
_NAMES: Final = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")
"""Files in a Hugging Face folder that may contain the template, in order of precedence."""
RESPONSE_TEMPLATE_FILE: Final = "tokenizer_config.json"
"""File in a Hugging Face folder that may contain the response template."""
_DELAY: Final = 0.05
"""Seconds between a request and the question for its model's template."""
_MAX_MODELS: Final = 1000
"""Maximum number of cached models."""
_MAX_FILE: Final = 64 * 1024 * 1024
"""Maximum size of a file, in bytes."""


@frozen
class FoundTemplate:
    """The analysis of a template, and the location where the template was found."""

    where: str
    """The file, or the path at the upstream."""
    recognised: Recognised
    described: Described | None = None
    """The analysis of the response template next to the chat template."""


# --- files -----------------------------------------------------------------------------------------------------------


def read_template(path: str, place: str = "chat_template") -> FoundTemplate:
    """Analyze the template in this file or folder. Raises SettingsError, which names the setting (`place`)."""
    found = Path(path)
    if found.is_dir():
        files = [found / name for name in _NAMES if (found / name).is_file()]
        if not files:
            raise SettingsError(f'{place}: none of {", ".join(_NAMES)} is in "{path}"', param=place)
    else:
        files = [found]
    for file in files:
        told = template_in(read_file(file, place), file.suffix == ".json")
        if told is not None:
            return FoundTemplate(str(file), told, described_beside(files, place))
    raise SettingsError(f'{place}: "{files[-1]}" contains no chat template', param=place)


def described_beside(files: Iterable[Path], place: str) -> Described | None:
    """Return what the response template in one of these files describes, or None if they contain none. One
    that is not supported is only logged, because no setting asks for it.
    """
    for file in files:
        if file.suffix == ".json" and (template := response_template_in(read_file(file, place))) is not None:
            try:
                return response_templates.read(template)
            except FormatError as error:
                _log.warning("the response_template in %s is not used: %s", file, error)
    return None


def read_response_template(path: str, place: str) -> Described:
    """Return what the response template in this file or folder describes. Raises SettingsError, which names the setting
    (`place`).
    """
    found = Path(path)
    file = found / RESPONSE_TEMPLATE_FILE if found.is_dir() else found
    text = read_file(file, place)
    template = response_template_in(text, alone=True)
    if template is None and not is_json(text):
        raise SettingsError(f'{place}: "{file}" is not JSON', param=place)
    if template is None:
        raise SettingsError(f'{place}: "{file}" contains no response_template', param=place)
    try:
        return response_templates.read(template)
    except FormatError as error:
        raise SettingsError(f'{place}: "{file}": {error}', param=place, code="unsupported_response_template") from None


def response_template_in(text: str, *, alone: bool = False) -> Json:
    """Return the response template in the text of a JSON file, or None if it contains none. With `alone`, the file may
    also be the template itself.
    """
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    own: Json = fields.get("response_template")
    return fields if own is None and alone and "fields" in fields else own


def is_json(text: str) -> bool:
    """Return whether the text is JSON."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def read_file(file: Path, place: str) -> str:
    """Return the text of a file. Raises SettingsError if it is too large or cannot be read."""
    try:
        if file.stat().st_size > _MAX_FILE:
            raise SettingsError(f'{place}: "{file}" is too large for a chat template', param=place)
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f'{place}: "{file}" cannot be read: {error.strerror}', param=place) from None
    except UnicodeDecodeError:
        raise SettingsError(f'{place}: "{file}" is not UTF-8', param=place) from None


def template_in(text: str, is_json: bool) -> Recognised | None:
    """Analyze the template in the text of a file. Return None if it contains no template.

    In JSON, the template is the value of `chat_template`: a string, or a list of named templates.
    """
    if not is_json:
        return recognise(text) if text.strip() else None
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return None
    match fields.get("chat_template") if isinstance(fields, dict) else None:
        case str(template):
            return recognise(template)
        case [*named]:
            templates = dict(names_and_templates(named))
            if templates:
                default = templates.get("default", next(iter(templates.values())))
                return recognise(default, templates.get("tool_use", ""))
    return None


def names_and_templates(named: Iterable[Json]) -> Iterable[tuple[str, str]]:
    """Yield the name and template of each entry that contains both."""
    for entry in named:
        match entry:
            case {"name": str(name), "template": str(template)}:
                yield name, template


# --- upstreams -------------------------------------------------------------------------------------------------------


class ChatTemplates:
    """The templates of the models in the settings, and of models that clients have requested.

    `upstreams` maps names to the upstreams that templates may be requested from. Raises SettingsError for a file that
    contains no template.
    """

    def __init__(self, settings: Settings, upstreams: Mapping[str, ASGIApp] | None = None) -> None:
        self._settings = settings
        self._upstreams = upstreams or {}
        self.engines = Engines(settings, self._upstreams)
        """The servers that the upstreams run."""
        self._files: dict[str, FoundTemplate] = {}
        places = [(settings.chat_template, "chat_template")]
        places += [
            (rule.chat_template or "auto", f"model[{i}].chat_template") for i, rule in enumerate(settings.models)
        ]
        for path, place in places:
            if path not in ("auto", "none"):
                self._files[path] = read_template(path, place)
        self._described: dict[str, Described] = {}
        """Path → what the response template in it describes."""
        described: list[tuple[str | Described, str]] = [(settings.response_template, "response_template")]
        described += [
            (rule.response_template or "auto", f"model[{i}].response_template")
            for i, rule in enumerate(settings.models)
        ]
        for own, place in described:
            if isinstance(own, str) and own not in ("auto", "none"):
                self._described[own] = read_response_template(own, place)
        self._check_taught(settings)
        self._tasks: TaskGroup | None = None
        """The tasks of `learning`, while it runs."""
        self._stale: set[Calibration] = set()
        """Calibrations of another version of a server, or of another model."""
        self._shown_templates: dict[tuple[str, str, str], FoundTemplate | None] = {}
        """The template that an upstream exposes, or None, keyed by (upstream, model, client). The model "" is the
        upstream's loaded model, regardless of its name. The client `ANONYMOUS` stands for all clients: the upstream
        exposes the same template to all of them, or requires no key.
        """

    def inform(self, model: ModelSettings, client: str = ANONYMOUS) -> ModelSettings:
        """Return the model's settings with the properties of its server and those recognized in its template, and
        without a calibration that no longer holds.
        """
        if model.uncalibrated is not None and model.calibration in self._stale:
            model = model.uncalibrated
        return self.engines.inform(model).with_template(self.of(model, client))

    def of(self, model: ModelSettings, client: str = ANONYMOUS) -> Recognised | None:
        """Return the analysis of the model's template, if it is known for this client, together with that of its
        response template.
        """
        shown = self.found(model, client)
        told = None if shown is None else shown.recognised
        own = self._described_for(model, shown)
        if own is None:
            return told
        return as_recognised(own, told if model.training.chat_template != "auto" else None)

    def _described_for(self, model: ModelSettings, shown: FoundTemplate | None) -> Described | None:
        """Return what the model's response template describes, or None if it has none."""
        own = model.training.response_template
        if own == "auto":
            return None if shown is None else shown.described
        return own if isinstance(own, Described) else self._described.get(own)

    def listened_formats(self) -> Iterator[tuple[str, ...] | None]:
        """Yield the sets of formats that replies may contain according to the response templates in the settings; None
        stands for the default set.
        """
        for name in ("", *(rule.match for rule in self._settings.models)):
            model = self._settings.for_model(name)
            told = self.of(model)
            if told is not None and told.described:
                yield model.with_template(told).listened_formats

    def _check_taught(self, settings: Settings) -> None:
        """Raise SettingsError if `format` is that of a response template that is not known."""
        names = [("", "format"), *((rule.match, f"model[{i}].format") for i, rule in enumerate(settings.models))]
        for name, place in names:
            model = settings.for_model(name)
            shown = self._files.get(model.training.chat_template)
            if model.training.teaches_described and self._described_for(model, shown) is None:
                raise SettingsError(f"{place}: no response_template is known; set its path", param=place)

    def found(self, model: ModelSettings, client: str = ANONYMOUS) -> FoundTemplate | None:
        """Return the analysis of the model's template together with the location where the template was found."""
        if model.training.chat_template != "auto":
            return self._files.get(model.training.chat_template)
        if model.upstream is None:
            return None
        name = model.upstream.name
        shown = self._shown_templates.get
        return shown((name, model.name, client)) or shown((name, model.name, ANONYMOUS)) or shown((name, "", ANONYMOUS))

    def wants(self, model: ModelSettings, client: str = ANONYMOUS) -> bool:
        """Return whether the model's template should be requested: it is unknown for this client but useful, and can be
        requested.
        """
        if model.upstream is None or not model.looks_for_template or model.upstream.name not in self._upstreams:
            return False
        client = self._client(model.upstream, client)
        return (
            self.found(model, client) is None and (model.upstream.name, model.name, client) not in self._shown_templates
        )

    def _client(self, upstream: UpstreamSettings, client: str) -> str:
        return client if self._settings.shows_clients(upstream) else ANONYMOUS

    async def learn(self, model: ModelSettings, headers: HeaderPairs = (), client: str | None = None) -> None:
        """Request the model's template from the upstream if `wants` is true. Wait for the result; failures raise no
        exception.

        `headers` are the headers of the client's request, because the upstream may require its authorization. `client`
        is the client's identity; if None, it is derived from the headers.
        """
        headers = tuple(headers)
        client = client_of(headers) if client is None else client
        if model.upstream is None or not self.wants(model, client):
            return
        key = (model.upstream.name, model.name, self._client(model.upstream, client))
        app = self._upstreams[key[0]]
        if len(self._shown_templates) >= _MAX_MODELS:
            del self._shown_templates[entry_to_evict({known: known[2] for known in self._shown_templates})]
        self._shown_templates[key] = None  # so that it is requested only once
        try:
            with anyio.move_on_after(TIMEOUT):
                self._shown_templates[key] = await ask_for_template(app, model.protocol or "chat", model.name, headers)
        except anyio.get_cancelled_exc_class():  # the request that needed the template has ended
            self._shown_templates.pop(key, None)
            raise
        except Exception:  # noqa: BLE001  a failure must not affect the request
            _log.debug("the chat template of %s could not be requested", model.name, exc_info=True)

    @asynccontextmanager
    async def learning(self) -> AsyncIterator[None]:
        """Recognize the servers. Then, while the block runs, request the templates that do not require a client's
        headers.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.learn_all)
            await self.engines.ask_all(tasks)
            self._tasks = tasks
            try:
                yield
            finally:
                self._tasks = None
            self.engines.stop()
            tasks.cancel_scope.cancel()

    def begin_learning(self, model: ModelSettings, headers: HeaderPairs, client: str) -> bool:
        """Begin to `learn` a template within `learning`, and return whether that block is running. Otherwise, the
        request has to do it, and ends it when it ends: a short reply could end before the upstream has answered.
        """
        if self._tasks is not None:
            self._tasks.start_soon(self._learn_later, model, tuple(headers), client)
        return self._tasks is not None

    async def _learn_later(self, model: ModelSettings, headers: HeaderPairs, client: str) -> None:
        """Do what `learn` does, once the request that names this model has been sent: it is served without the
        template, and must not wait for it.
        """
        await anyio.sleep(_DELAY)
        await self.learn(model, headers, client)

    async def learn_once(self, model: str) -> None:
        """Recognize the servers, and request this model's template. Failures raise no exception."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.engines.ask_all)
            tasks.start_soon(self.learn, self._settings.for_model(model))

    async def learn_all(self) -> None:
        """Request the templates of the models named in the settings, and of the loaded models, and check the
        calibrations. Failures raise no exception.
        """
        async with anyio.create_task_group() as tasks:
            for name, app in self._upstreams.items():
                tasks.start_soon(self._check_calibrations, name, app)
                if self._settings.for_model("").looks_for_template:
                    tasks.start_soon(self._learn_loaded, name, app)
            for rule in self._settings.models:
                if not any(wild in (rule.use or rule.match) for wild in "*?["):
                    tasks.start_soon(self._learn_named, self._settings.for_model(rule.match))

    async def _learn_named(self, model: ModelSettings) -> None:
        """Request this model's template. If the upstream does not expose it, allow another attempt with a client's
        key.
        """
        await self.learn(model)
        upstream = model.upstream
        if upstream is not None and upstream.key is None and self.found(model) is None:
            self._shown_templates.pop((upstream.name, model.name, ANONYMOUS), None)

    async def _learn_loaded(self, name: str, app: ASGIApp) -> None:
        """Request the template of an upstream's loaded model, regardless of the model's name."""
        with anyio.move_on_after(TIMEOUT):
            shown = await ask_for_template(app, "chat", "", ())
            if shown is not None:
                self._shown_templates[name, "", ANONYMOUS] = shown

    async def _check_calibrations(self, name: str, app: ASGIApp) -> None:
        """Find the calibrations of an upstream that measured another version of its server, or another model."""
        upstream = self._settings.upstreams[name]
        measured = [one for one in self._settings.calibrations if one.url == upstream.url]
        if not measured:
            return
        try:
            server, models = await server_of(app), await models_of(app, upstream.wire_protocol)
        except Exception:  # noqa: BLE001  a failure must not affect the proxy
            _log.debug("the version of %s could not be requested", upstream.url, exc_info=True)
            return
        for one in measured:
            change = one.change(server, models)
            if change:
                self._stale.add(one)
                _log.warning(
                    "the calibration of %s is not used: %s; measure it again with `streamtool eval %s`",
                    one.model,
                    change,
                    one.url,
                )


async def ask_for_template(app: ASGIApp, protocol: str, model: str, headers: HeaderPairs) -> FoundTemplate | None:
    """Return the template that the upstream exposes for the model, or None. If `model` is "", return the loaded model's
    template.
    """
    kept = [(name.lower(), value) for name, value in headers if name.lower() in wire.KEY_HEADERS]
    asked = f"/props?model={quote(model, safe='')}&autoload=false" if model else "/props"
    if protocol != "ollama":
        shown = await _fetch_json(app, "GET", asked, kept)
        match shown:
            case {"chat_template": str(template), **rest} if template.strip() and rest.get("role") != "router":
                with_tools = rest.get("chat_template_tool_use")
                return FoundTemplate("/props", recognise(template, with_tools if isinstance(with_tools, str) else ""))
    if model:
        shown = await _fetch_json(app, "POST", "/api/show", kept, wire.encode({"model": model}))
        match shown:
            case {"template": str(template)} if template.strip():
                return FoundTemplate("/api/show", recognise(template))
    return None


async def _fetch_json(
    app: ASGIApp, method: str, path: str, headers: list[tuple[bytes, bytes]], body: bytes = b""
) -> Json:
    """Return the upstream's response as decoded JSON, or None if it is not JSON."""
    typed = [*headers, *([(b"content-type", b"application/json")] if body else [])]
    try:
        answer = await ask(app, SCOPE, method, path, body=body, headers=typed, receive=never_disconnects)
        return wire.decode_tolerant(answer.body) if answer.status == 200 else None
    except (StreamtoolError, ValueError):
        return None
