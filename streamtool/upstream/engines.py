"""Recognizes the servers that upstreams run, by questions that generate nothing.

They are asked when the proxy starts, after an upstream has returned from a failure, and after a prompt was refused
because of the window that was found. All questions are sent at the same time, and time out together. A server that does
not answer is treated like one that is not known: its upstream speaks `chat`, and its window is unknown.
"""

import logging
from collections.abc import Mapping
from functools import partial
from typing import Final
from urllib.parse import urlsplit

import anyio
from anyio.abc import TaskGroup

from streamtool.asgi.types import SCOPE, ASGIApp, ask, never_disconnects
from streamtool.core.errors import StreamtoolError
from streamtool.core.json_value import Json
from streamtool.models.engines import HOSTED, QUESTIONS, FoundEngine, is_window, members, recognize
from streamtool.protocols.shared import wire
from streamtool.protocols.table import PROTOCOLS
from streamtool.settings import ModelSettings, Settings, UpstreamSettings
from streamtool.upstream.app import OUTSIDE_VERSION, HttpUpstream, model_servers

TIMEOUT: Final = 5.0
"""Maximum number of seconds for a server to answer all questions."""
_AGAIN: Final = 10.0
"""Minimum number of seconds between two recognitions of the same upstream."""
_SHOWN: Final = 32
"""Maximum number of models whose windows are requested one by one."""
_SHOW: Final = "/api/show"
_RESOLVED: Final = 1000
"""Maximum number of models whose settings are cached."""

_log = logging.getLogger("streamtool")


class Engines:
    """The recognized servers of the upstreams in the settings. `upstreams` maps names to the upstreams to ask."""

    def __init__(self, settings: Settings, upstreams: Mapping[str, ASGIApp]) -> None:
        self._settings = settings
        self._upstreams = upstreams if settings.recognize else {}
        self._found: dict[str, FoundEngine] = {}
        self._asked: dict[str, float] = {}
        """Upstream → the time of the last questions."""
        self._informed: dict[tuple[str, str], tuple[ModelSettings, ModelSettings]] = {}
        """Upstream and model → the settings before and after `inform`."""
        self._groups = _groups(settings.upstreams)
        self._distrusted: set[str] = set()
        """Upstreams whose servers do not serve their own protocol."""
        self._tasks: TaskGroup | None = None
        """The tasks of the started proxy; None before its start and after its end."""
        for name, upstream in settings.upstreams.items():
            row = HOSTED.get(urlsplit(upstream.url).hostname or "")
            if row is not None:
                self._found[name] = FoundEngine(row)
        for name, app in self._upstreams.items():
            if isinstance(app, HttpUpstream):
                app.on_return = partial(self._ask_later, name)

    def of(self, upstream: str) -> FoundEngine | None:
        """Return the recognized server of an upstream, or None if it is not known."""
        return self._found.get(upstream)

    def note(self, upstream: str, found: FoundEngine) -> None:
        """Note the recognized server of an upstream."""
        self._found[upstream] = found

    def inform(self, model: ModelSettings) -> ModelSettings:
        """Return the model's settings with the properties of its server."""
        if model.upstream is None or (found := self._found.get(model.upstream.name)) is None:
            return model
        key = (model.upstream.name, model.name)
        known = self._informed.get(key)
        if known is None or known[0] is not model or known[1].engine is not found:
            if len(self._informed) >= _RESOLVED:
                self._informed.clear()
            known = model, model.with_engine(found, speaks=self._may_speak(model.upstream.name, found))
            self._informed[key] = known
        return known[1]

    def protocol_of(self, upstream: UpstreamSettings) -> str:
        """Return the protocol that is spoken to an upstream."""
        found = self.of(upstream.name)
        if found is None or upstream.protocol != "auto" or not self._may_speak(upstream.name, found):
            return upstream.wire_protocol
        return found.engine.protocol

    def lines(self) -> Mapping[str, str]:
        """Return the recognized server of each upstream and the consequences, in one line each. Upstreams that were not
        asked are missing.
        """
        return {name: self._line(upstream) for name, upstream in self._settings.upstreams.items() if self._knows(name)}

    def _knows(self, upstream: str) -> bool:
        return upstream in self._found or upstream in self._asked

    def _line(self, upstream: UpstreamSettings) -> str:
        names = [rule.match for rule in self._settings.models if rule.upstream in (None, upstream.name)]
        models = [model for name in (*names, "") if (model := self._settings.for_model(name)).upstream is upstream]
        model = models[0] if models else ModelSettings("", upstream, upstream.wire_protocol, forcing=upstream.forcing)
        found = self.of(upstream.name)
        if found is not None:
            model = model.with_engine(found, speaks=self._may_speak(upstream.name, found))
        protocol = model.protocol or "chat"
        forcing = PROTOCOLS[protocol].auto_forcing if model.forcing == "auto" else model.forcing
        if found is not None and (model.context is None or model.chooses_window):
            window = found.shown_window(model.name)
        elif model.context is None:
            window = "window unknown"
        else:
            known = found is not None and model.context == found.window(model.name)
            window = f"window {model.context}" + (f" ({found.where})" if found is not None and known else "")
        title = "unknown server" if found is None else found.title
        return f"{title} at {upstream.url}: {protocol}, {window}, calls forced by {forcing}"

    async def ask_all(self, tasks: TaskGroup | None = None) -> None:
        """Recognize the servers of all upstreams. Failures raise no exception. `tasks`, if there are any, ask again
        until `stop`.
        """
        self._tasks = tasks
        async with anyio.create_task_group() as asking:
            for name in self._upstreams:
                asking.start_soon(self.ask, name)

    def stop(self) -> None:
        """Ask nothing from now on."""
        self._tasks = None

    async def doubt(self, model: ModelSettings) -> None:
        """Ask a model's server again, because its window may have changed. Failures raise no exception."""
        if self._tasks is not None and model.engine is not None and model.upstream is not None:
            name = model.upstream.name
            if name in self._upstreams and anyio.current_time() - self._asked[name] >= _AGAIN:
                await self.ask(name)

    def distrust(self, model: ModelSettings) -> None:
        """Speak to a model's server as if it had not been recognized, since it does not serve its own protocol."""
        if model.upstream is not None:
            self._distrusted.add(model.upstream.name)
            self._informed.clear()

    async def ask(self, upstream: str) -> None:
        """Recognize an upstream's server. The previous result remains if it is not recognized."""
        before = self.lines().get(upstream)
        self._asked[upstream] = anyio.current_time()
        found = await recognize_server(self._upstreams[upstream])
        if found is None:
            return
        known = self.of(upstream)
        if known is not None and known.engine is found.engine:
            found.chosen.update(known.chosen)
        self.note(upstream, found)
        if before is not None and (now := self._line(self._settings.upstreams[upstream])) != before:
            _log.info("upstream %s: %s", upstream, now)

    def _ask_later(self, upstream: str) -> None:
        if self._tasks is not None:
            self._tasks.start_soon(self.ask, upstream)

    def _may_speak(self, upstream: str, found: FoundEngine) -> bool:
        """Return whether the server's own protocol can be used: all upstreams of a failover group get the same
        request.
        """
        return upstream not in self._distrusted and all(
            (other := self.of(name)) is not None and other.engine.protocol == found.engine.protocol
            for name in self._groups.get(upstream, ())
        )


async def recognized_lines(settings: Settings) -> Mapping[str, str]:
    """Return `Engines.lines` of all upstreams in the settings, after asking them once."""
    apps = {name: HttpUpstream(one) for name, one in settings.upstreams.items() if one.url != "sample"}
    engines = Engines(settings, model_servers(apps))
    try:
        await engines.ask_all()
    finally:
        for app in apps.values():
            await app.aclose()
    return engines.lines()


async def recognize_server(app: ASGIApp) -> FoundEngine | None:
    """Return the server that answers, or None if it is not known. Failures raise no exception."""
    answers: dict[str, Json] = {}

    async def look(path: str) -> None:
        answer = await _fetch(app, "GET", path)
        if answer is not None:
            answers[path] = answer

    with anyio.move_on_after(TIMEOUT) as limit:
        async with anyio.create_task_group() as tasks:
            for path in QUESTIONS:
                tasks.start_soon(look, path)
    found = recognize(answers)  # of a server that leaves some questions open, the answers to the others count
    if found is not None and found.engine.grows:
        with anyio.CancelScope(deadline=limit.deadline):
            await _add_maximums(app, found, answers)
    return found


async def _add_maximums(app: ASGIApp, found: FoundEngine, answers: Mapping[str, Json]) -> None:
    """Request the largest window of each listed model. A `num_ctx` in the model's file is set by hand, so it is both
    the window and the largest one.
    """
    maximums = found.maximums

    async def look(name: str) -> None:
        shown = await _fetch(app, "POST", _SHOW, wire.encode({"model": name}))
        if not isinstance(shown, dict):
            return
        info, parameters = shown.get("model_info"), shown.get("parameters")
        for key, value in info.items() if isinstance(info, dict) else ():
            if key.endswith(".context_length") and is_window(value):
                maximums[name] = value
        for line in parameters.splitlines() if isinstance(parameters, str) else ():
            if line.split()[:1] == ["num_ctx"] and (number := line.split()[-1]).isdecimal() and is_window(int(number)):
                maximums[name] = int(number)

    names = [name for name in members(answers.get("/api/tags"), "models.*.name") if isinstance(name, str)]
    async with anyio.create_task_group() as tasks:
        for name in names[:_SHOWN]:
            tasks.start_soon(look, name)


async def _fetch(app: ASGIApp, method: str, path: str, body: bytes = b"") -> Json:
    """Return the decoded answer, or None if it is not JSON."""
    headers = [(b"content-type", b"application/json")] if body else []
    scope = {**SCOPE, OUTSIDE_VERSION: True}
    try:
        answer = await ask(app, scope, method, path, body=body, headers=headers, receive=never_disconnects)
        return wire.decode_tolerant(answer.body) if answer.status == 200 else None
    except (StreamtoolError, ValueError, RecursionError):
        return None
    except Exception:  # noqa: BLE001  whatever is wrong with the server, it is only not recognized
        _log.debug("%s could not be requested", path, exc_info=True)
        return None


def _groups(upstreams: Mapping[str, UpstreamSettings]) -> dict[str, set[str]]:
    """Return the other members of each upstream's failover groups."""
    groups: dict[str, set[str]] = {}
    for name, upstream in upstreams.items():
        members = {name, *upstream.fallbacks} if upstream.fallbacks else set()
        for member in members:
            groups.setdefault(member, set()).update(members - {member})
    return groups
