"""The chat templates of models: read from files, or asked of the upstreams that show them.

Files are read once, when a middleware or transport is made. Upstreams are asked beside the first request, which does
not wait: it goes by the model's name, and later ones by the template. `Proxy` asks when it starts, where it can. What
goes wrong is no error; nobody asked for the template, and the name tells something too.

llama.cpp shows the template at `GET /props` (`chat_template`, `chat_template_tool_use`; tools/server/README.md), Ollama
at `POST /api/show` (`template`; docs/api.md). Others show none.
"""

import json
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import anyio
from attrs import frozen

from streamtool.errors import SettingsError, StreamtoolError
from streamtool.http.asgi import SCOPE, ASGIApp, ask, nobody_leaves
from streamtool.protocols import wire
from streamtool.settings import ModelSettings, Settings, UpstreamSettings
from streamtool.state.clients import NOBODY, Headers, client_of, surplus
from streamtool.templates import Recognised, recognise

Json = Any  # a JSON value
_log = logging.getLogger("streamtool")

SECONDS: Final = 5.0
"""How long an upstream may take to show a template."""
_NAMES: Final = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")
"""The files of a Hugging Face folder that may hold the template, in the order in which they count."""
_MOST: Final = 1000
"""Models that are remembered."""
_LARGEST: Final = 64 * 1024 * 1024
"""Bytes of a file."""


@frozen
class FoundTemplate:
    """A template that was found."""

    where: str
    """A file, or the path at the upstream."""
    recognised: Recognised


# --- files -----------------------------------------------------------------------------------------------------------


def read_template(path: str, place: str = "chat_template") -> FoundTemplate:
    """What the template of this file or folder tells. Raises SettingsError, which names the place of the setting."""
    found = Path(path)
    if found.is_dir():
        files = [found / name for name in _NAMES if (found / name).is_file()]
        if not files:
            raise SettingsError(f'{place}: there is none of {", ".join(_NAMES)} in "{path}"', param=place)
    else:
        files = [found]
    for file in files:
        told = template_in(read_file(file, place), file.suffix == ".json")
        if told is not None:
            return FoundTemplate(str(file), told)
    raise SettingsError(f'{place}: "{files[-1]}" holds no chat template', param=place)


def read_file(file: Path, place: str) -> str:
    """The text of a file. Raises SettingsError."""
    try:
        if file.stat().st_size > _LARGEST:
            raise SettingsError(f'{place}: "{file}" is too large for a chat template', param=place)
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f'{place}: "{file}" cannot be read: {error.strerror}', param=place) from None
    except UnicodeDecodeError:
        raise SettingsError(f'{place}: "{file}" is not UTF-8', param=place) from None


def template_in(text: str, is_json: bool) -> Recognised | None:
    """What the template in the text of a file tells; None if it holds none.

    In JSON it stands under `chat_template`: a string, or a list of templates that have names.
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
    """The templates of a list, and their names."""
    for entry in named:
        match entry:
            case {"name": str(name), "template": str(template)}:
                yield name, template


# --- upstreams -------------------------------------------------------------------------------------------------------


class ChatTemplates:
    """The templates of the models that the settings know, and of those that were asked for.

    `upstreams` are those that may be asked, by name. Raises SettingsError for a file that holds no template.
    """

    def __init__(self, settings: Settings, upstreams: Mapping[str, ASGIApp] | None = None) -> None:
        self._settings = settings
        self._upstreams = upstreams or {}
        self._files: dict[str, FoundTemplate] = {}
        places = [(settings.chat_template, "chat_template")]
        places += [
            (rule.chat_template or "auto", f"model[{i}].chat_template") for i, rule in enumerate(settings.models)
        ]
        for path, place in places:
            if path not in ("auto", "none"):
                self._files[path] = read_template(path, place)
        self._shown: dict[tuple[str, str, str], FoundTemplate | None] = {}
        """Upstream, model and client -> what it shows; None: nothing. The model "" stands for whichever one is loaded,
        the client `NOBODY` for all, where the upstream shows the same to all or needs no key."""

    def of(self, model: ModelSettings, client: str = NOBODY) -> Recognised | None:
        """What the model's template tells, as far as it is known for this client."""
        shown = self.found(model, client)
        return None if shown is None else shown.recognised

    def found(self, model: ModelSettings, client: str = NOBODY) -> FoundTemplate | None:
        """The same, with the place where it was found."""
        if model.training.chat_template != "auto":
            return self._files.get(model.training.chat_template)
        if model.upstream is None:
            return None
        name = model.upstream.name
        places = (name, model.name, client), (name, model.name, NOBODY), (name, "", NOBODY)
        return next((shown for place in places if (shown := self._shown.get(place))), None)

    def wants(self, model: ModelSettings, headers: Headers = ()) -> bool:
        """True if the model's template is not known, would tell something, and can be asked for.

        `headers` are those of a client's request, which decide for whom it is known.
        """
        if model.upstream is None or not model.looks_for_template or model.upstream.name not in self._upstreams:
            return False
        client = self._client(model.upstream, headers)
        return self.found(model, client) is None and (model.upstream.name, model.name, client) not in self._shown

    def _client(self, upstream: UpstreamSettings, headers: Headers) -> str:
        return client_of(headers) if self._settings.shows_clients(upstream) else NOBODY

    async def learn(self, model: ModelSettings, headers: Headers = ()) -> None:
        """Ask the upstream for the model's template, if it `wants` to. Never raises, but waits.

        `headers` are those of the client's request, whose authorization the upstream may demand.
        """
        headers = tuple(headers)
        if model.upstream is None or not self.wants(model, headers):
            return
        key = (model.upstream.name, model.name, self._client(model.upstream, headers))
        app = self._upstreams[key[0]]
        if len(self._shown) >= _MOST:
            del self._shown[surplus({known: known[2] for known in self._shown})]
        self._shown[key] = None  # nobody asks twice
        try:
            with anyio.move_on_after(SECONDS):
                self._shown[key] = await ask_for_template(app, model.protocol or "chat", model.name, headers)
        except anyio.get_cancelled_exc_class():  # the request that it stood beside is over
            self._shown.pop(key, None)
            raise
        except Exception:  # noqa: BLE001  it stands beside a request that must not fail for it
            _log.debug("the chat template of %s could not be asked for", model.name, exc_info=True)

    @asynccontextmanager
    async def asked(self) -> AsyncIterator[None]:
        """Asks, meanwhile, what can be asked without a request."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.learn_all)
            yield
            tasks.cancel_scope.cancel()

    async def learn_all(self) -> None:
        """Ask for the templates of the models that the settings name, and of those that are loaded. Never raises."""
        async with anyio.create_task_group() as tasks:
            for name, app in self._upstreams.items():
                if self._settings.for_model("").looks_for_template:
                    tasks.start_soon(self._learn_loaded, name, app)
            for rule in self._settings.models:
                if not any(wild in (rule.use or rule.match) for wild in "*?["):
                    tasks.start_soon(self._learn_named, self._settings.for_model(rule.match))

    async def _learn_named(self, model: ModelSettings) -> None:
        """Ask for this model's template. What is not shown is asked for once more, with the first client's own key."""
        await self.learn(model)
        upstream = model.upstream
        if upstream is not None and upstream.key is None and self.found(model) is None:
            self._shown.pop((upstream.name, model.name, NOBODY), None)

    async def _learn_loaded(self, name: str, app: ASGIApp) -> None:
        """Ask an upstream that has one model only, whatever it is called."""
        with anyio.move_on_after(SECONDS):
            shown = await ask_for_template(app, "chat", "", ())
            if shown is not None:
                self._shown[name, "", NOBODY] = shown


async def ask_for_template(app: ASGIApp, protocol: str, model: str, headers: Headers) -> FoundTemplate | None:
    """What the upstream shows of the model's template; None if it shows none. `model` "": the one that is loaded."""
    kept = [(name.lower(), value) for name, value in headers if name.lower() in wire.KEY_HEADERS]
    asked = f"/props?model={quote(model, safe='')}&autoload=false" if model else "/props"
    if protocol != "ollama":
        shown = await _asked(app, "GET", asked, kept)
        match shown:
            case {"chat_template": str(template), **rest} if template.strip() and rest.get("role") != "router":
                with_tools = rest.get("chat_template_tool_use")
                return FoundTemplate("/props", recognise(template, with_tools if isinstance(with_tools, str) else ""))
    if model:
        shown = await _asked(app, "POST", "/api/show", kept, wire.encode({"model": model}))
        match shown:
            case {"template": str(template)} if template.strip():
                return FoundTemplate("/api/show", recognise(template))
    return None


async def _asked(app: ASGIApp, method: str, path: str, headers: list[tuple[bytes, bytes]], body: bytes = b"") -> Json:
    """The JSON that the upstream answers; None if it answers anything else."""
    typed = [*headers, *([(b"content-type", b"application/json")] if body else [])]
    try:
        answer = await ask(app, SCOPE, method, path, body=body, headers=typed, receive=nobody_leaves)
        return wire.decode_tolerant(answer.body) if answer.status == 200 else None
    except (StreamtoolError, ValueError):
        return None
