"""`streamtool serve`: the proxy under a real server.

The socket is opened before anything is printed, so the address that is shown is the one that answers (also for port 0).
What happens then is told by the log (`streamtool.observe.logs`), a line for each exchange, on standard error. The
servers themselves are in `streamtool.cli.servers`.
"""

import errno
import importlib
import json
import logging
import os
import shlex
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from attrs import evolve, frozen

from streamtool.cli.common import Screen, read_settings
from streamtool.cli.garbage import Collector
from streamtool.cli.pid_file import process_at, serving
from streamtool.cli.reloading import RELOADS, ReloadingProxy
from streamtool.cli.servers.descriptors import affordable
from streamtool.cli.shared_state import SharedState
from streamtool.cli.workers import BACKLOG, Workers, sockets
from streamtool.errors import SettingsError, StreamtoolError
from streamtool.http.phrases import open_phrases
from streamtool.http.templates import ChatTemplates
from streamtool.observe import logs
from streamtool.settings import Settings
from streamtool.settings import check as check_safety

T = TypeVar("T")
_Serve = Callable[[ReloadingProxy, socket.socket], list[int]]

SERVERS = ("uvicorn", "hypercorn")
_ANY = "default"
"""A model that some upstreams take for theirs, whatever it is."""

_TURN = 0.001
"""Seconds that a worker thread keeps the interpreter while the event loop wants it."""

_log = logging.getLogger("streamtool")

_FLAGS = {"upstream.flag.url": "--upstream", "upstream.flag.protocol": "--protocol", "upstream.flag.key": "--key-env"}
"""Where settings that only a flag can have made are found wrong, and that flag."""


@frozen
class ServeFlags:
    """The flags of `serve`, most of which `run` has too; None: not given."""

    upstream: str | None = None
    protocol: str | None = None
    key_env: str | None = None
    model: str | None = None
    mode: str | None = None
    format: str | None = None
    config: str | None = None
    host: str | None = None
    port: int | None = None
    workers: int | None = None
    server: str = "uvicorn"
    insecure: bool = False
    inspect: bool = False
    contents: bool = False

    def settings(self) -> Settings:
        """The settings that these flags, the environment and the file amount to. Raises SettingsError."""
        if self.upstream is None and (self.protocol is not None or self.key_env is not None):
            raise SettingsError("--protocol and --key-env say something about --upstream, which is missing")
        if self.server not in SERVERS:
            raise SettingsError(f"--server: expected one of {', '.join(SERVERS)}, found {self.server!r}")
        overrides: dict[str, Any] = {"mode": self.mode, "format": self.format, "insecure": self.insecure or None}
        overrides |= {"workers": self.workers, "inspect": self.inspect or None, "contents": self.contents or None}
        if self.upstream is not None:
            key = None if self.key_env is None else f"env:{self.key_env}"
            overrides["upstream"] = {"flag": {"url": self.upstream, "protocol": self.protocol, "key": key}}
        if self.model is not None:
            overrides["model"] = [{"match": "*", "use": self.model}]
        try:
            found = read_settings(self.config, overrides)
        except SettingsError as error:
            flag = next((flag for path, flag in _FLAGS.items() if error.message.startswith(path)), None)
            if flag is None:
                raise
            raise SettingsError(f"{flag}:{error.message.partition(':')[2]}", param=flag) from None
        if self.host is not None or self.port is not None:
            host = found.host if self.host is None else self.host
            port = found.port if self.port is None else self.port
            found = evolve(found, listen=address(host, port))
        return check_safety(found)


def run(flags: ServeFlags, *, only_check: bool) -> None:
    """Serve until interrupted. Raises SettingsError; StreamtoolError when the proxy cannot start."""
    settings = flags.settings()
    screen = Screen()
    if only_check:
        open_phrases(settings)  # files that nothing else would read
        ChatTemplates(settings)
        for wanted, module in ((settings.metrics, "metrics"), (settings.otel, "otel")):
            if wanted:
                importlib.import_module(f"streamtool.observe.{module}")  # which needs an extra
        describe(settings, settings.listen, screen)
        screen.line(("the settings are fine", "bold green"))
        return
    logs.configure(settings)
    server = importlib.import_module(f"streamtool.cli.servers.{flags.server}")  # only the one that is asked for
    sys.setswitchinterval(_TURN)
    if RELOADS:
        signal.signal(signal.SIGHUP, lambda *_: None)  # until it is listened to: what it asks for was just done
    caught = (_alone if settings.workers == 1 else _together)(flags, settings, server.serve, screen)
    if signal.SIGINT in caught[:1]:
        raise KeyboardInterrupt


def _alone(flags: ServeFlags, settings: Settings, serve: _Serve, screen: Screen) -> list[int]:
    """Serve in this process. Returns the signals that ended it."""
    settings = _affordable(settings)

    def begun() -> None:
        announce(settings, listening, screen)

    proxy = ReloadingProxy(settings, lambda: _affordable(flags.settings()), begun=begun)  # misses a missing extra
    with bind(settings.host, settings.port) as sock:  # at last: from here on somebody may wait for an answer
        listening = address(settings.host, sock.getsockname()[1])
        with serving(listening):
            proxy.when_quiet(Collector().quiet)
            return serve(proxy, sock)


def _together(flags: ServeFlags, settings: Settings, serve: _Serve, screen: Screen) -> list[int]:
    """Serve in several processes. Returns the signals that ended them."""
    if not hasattr(socket, "SO_REUSEPORT") or not hasattr(os, "fork"):
        raise SettingsError("workers: this system cannot share a port between processes", param="workers")
    with SharedState() as shared:

        def read() -> Settings:
            return _affordable(shared.placed(flags.settings()))

        def work(sock: socket.socket, ready: Callable[[], None]) -> None:
            proxy = ReloadingProxy(settings, read, begun=ready)
            proxy.when_quiet(Collector().quiet)
            serve(proxy, sock)

        def reload() -> bool:
            nonlocal settings
            try:
                settings = read()
            except SettingsError as error:
                _log.error("the settings stay as they were: %s", error.message)
                return False
            logs.configure(settings)
            return True

        settings = _affordable(shared.placed(settings))
        made = _opened(partial(sockets, settings.host, settings.port, settings.workers), settings.listen)
        listening = address(settings.host, made[0].getsockname()[1])
        with serving(listening):
            workers = Workers(made, work, ended=shared.over)
            return workers.run(lambda: announce(settings, listening, screen), reload)


def _affordable(settings: Settings) -> Settings:
    """With the limits that the process can keep."""
    return evolve(settings, limits=affordable(settings.limits))


def announce(settings: Settings, listening: str, screen: Screen) -> None:
    """Say where the proxy listens, and how to ask it; in a log of JSON, as one line of it."""
    if settings.log == "json":
        _log.info("listens on http://%s/v1", listening)
        return
    describe(settings, listening, screen)
    screen.line()
    screen.line((f"Paste this into another terminal{model_hint(settings)}:", "bold"))
    screen.line(curl_line(listening, settings))
    screen.line()


def reload(flags: ServeFlags) -> None:
    """Have the server read its settings anew. Raises SettingsError, StreamtoolError."""
    listening = flags.settings().listen
    process = process_at(listening)
    if process is None:
        raise StreamtoolError(f"no `streamtool serve` of this user serves {listening}; --port names another port")
    os.kill(process, signal.SIGHUP)
    Screen().line(f"process {process} reads its settings anew; its log says what came of it")


def describe(settings: Settings, listening: str, screen: Screen) -> None:
    """Where the proxy listens, and what for."""
    screen.line(("streamtool", "bold cyan"), " listens on ", (f"http://{listening}/v1", "bold"))
    if not settings.upstreams:
        screen.line("  upstream  the embedded sample model (--upstream URL puts a real one there)")
    for name, upstream in settings.upstreams.items():
        key = "its own key" if upstream.key else "the client's authorization"
        screen.line(f"  upstream  {name}: {upstream.url}, {upstream.protocol}, with {key}")
    for rule in settings.models:
        target = f" at {rule.upstream}" if rule.upstream else ""
        screen.line(f"  model     {rule.match} → {rule.use or 'the same name'}{target}")
    screen.line(f"  mode      {settings.mode}, format {settings.format}")
    screen.line(f"  clients   {'need a key' if settings.client_keys else 'need no key'}")
    if settings.hosts:
        screen.line(f"  names     {', '.join(settings.hosts)}")
    if settings.cors_origins:
        screen.line(f"  pages     of {', '.join(settings.cors_origins)}")
    if settings.metrics:
        screen.line(f"  metrics   http://{listening}/metrics")
    if settings.recordings is not None:
        screen.line("  trace     prompts and replies are written to ", (settings.recordings, "bold"))
    if settings.contents:
        screen.line("  contents  prompts and replies may stand in the log, and in the inspector")
    if settings.inspect:
        texts = "" if settings.contents else ", without texts (--contents shows them)"
        screen.line("  inspector ", (f"http://{listening}/inspect", "bold"), texts)


def curl_line(listening: str, settings: Settings) -> str:
    """A line to paste: a question, a tool, a streamed call."""
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    weather = {"name": "get_weather", "description": "The weather in a city.", "parameters": city}
    body = {
        "model": "sample" if not settings.upstreams else _ANY,
        "stream": True,
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [{"type": "function", "function": weather}],
    }
    key = ' -H "authorization: Bearer $STREAMTOOL_CLIENT_KEY"' if settings.client_keys else ""
    data = shlex.quote(json.dumps(body, ensure_ascii=False))
    return f"curl -N http://{listening}/v1/chat/completions -H 'content-type: application/json'{key} -d {data}"


def model_hint(settings: Settings) -> str:
    """What has to be changed in the line to paste, if anything has to."""
    named = not settings.upstreams or settings.for_model(_ANY).name != _ANY
    return "" if named else f' (with one of the upstream\'s models in the place of "{_ANY}")'


def address(host: str, port: int) -> str:
    """A host and a port as in a url."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises StreamtoolError."""

    def made() -> socket.socket:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)

    return _opened(made, address(host, port))


def _opened(make: Callable[[], T], place: str) -> T:
    """The sockets that `make` makes. Raises StreamtoolError."""
    try:
        return make()
    except OSError as error:
        # create_server adds the address to its own sentence
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        advice = "; --port takes another (0: any free one)" if error.errno == errno.EADDRINUSE else ""
        raise StreamtoolError(f"cannot listen on {place}: {reason}{advice}") from None
