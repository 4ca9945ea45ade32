"""`streamtool serve`: run the proxy under a real server.

The socket is opened before anything is printed, so the printed address is always the actual one, even if the port is
chosen by the system (port 0). From then on, the log (`streamtool.observe.logs`) writes a line per exchange to standard
error. The servers are in `streamtool.cli.servers`.
"""

import errno
import importlib
import json
import logging
import os
import pickle
import re
import shlex
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import anyio
from attrs import evolve, frozen

from streamtool.cli.common import Screen, located, read_settings_file
from streamtool.cli.garbage import Collector
from streamtool.cli.huge_pages import reserve, use_huge_pages
from streamtool.cli.pid_file import pid_file, process_at
from streamtool.cli.reloading import HAS_SIGHUP, ReloadingProxy
from streamtool.cli.state import load_calibrations
from streamtool.cli.workers import BACKLOG, SharedState, Workers, bind_sockets
from streamtool.core.errors import SettingsError, StreamtoolError
from streamtool.observe import logs
from streamtool.proxy import Proxy
from streamtool.server.services import open_phrases
from streamtool.settings import LimitSettings, Settings, check_reload, is_loopback, load
from streamtool.settings import check as check_safety
from streamtool.upstream.chat_templates import ChatTemplates
from streamtool.upstream.engines import recognized_lines

T = TypeVar("T")
_Serve = Callable[[ReloadingProxy, socket.socket], list[int]]

SERVERS = ("uvicorn", "hypercorn")
_DEFAULT_MODEL = "default"
"""Model name that some upstreams accept for whatever model they serve."""

_SWITCH_INTERVAL = 0.001
"""Seconds that a worker thread may hold the interpreter lock while the event loop waits for it."""

_OWN_DESCRIPTORS = 64
"""File descriptors reserved for files, the log and MCP servers."""
_RESERVED = 16 * 1024 * 1024
"""Maximum number of bytes to reserve for what the inspector keeps. With them, the inspector adds 2 % to the CPU time of
a delta; without them, 5 % (`benchmarks/paced.py --beside`, 100 streams).
"""

_log = logging.getLogger("streamtool")

_FLAGS = {"upstream.flag.url": "--upstream", "upstream.flag.protocol": "--protocol", "upstream.flag.key": "--key-env"}
"""Paths of settings from flags -> the flags, which error messages name instead of the paths."""


@frozen
class ServeFlags:
    """Flags of `streamtool serve`, most of them shared with `run`. None means that the flag was not given."""

    upstream: str | None = None
    protocol: str | None = None
    key_env: str | None = None
    model: str | None = None
    mode: str | None = None
    format: str | None = None
    select_tools: int | None = None
    context: int | None = None
    config: str | None = None
    host: str | None = None
    port: int | None = None
    workers: int | None = None
    server: str = "uvicorn"
    insecure: bool = False
    inspect: bool = False
    contents: bool = False
    calibrations: str | None = None

    def settings(self) -> Settings:
        """Return the settings that result from these flags, the environment and the file. Raises SettingsError."""
        return check_safety(self.with_file(read_settings_file(self.config)))

    def with_file(self, text: str) -> Settings:
        """Return the settings that result from these flags, the environment and a file that contains `text`, without
        checking that they are safe. Raises SettingsError.
        """
        if self.upstream is None and (self.protocol is not None or self.key_env is not None):
            raise SettingsError("--protocol and --key-env require --upstream")
        if self.server not in SERVERS:
            raise SettingsError(f"--server: expected one of {', '.join(SERVERS)}, found {self.server!r}")
        overrides: dict[str, Any] = {"mode": self.mode, "format": self.format, "insecure": self.insecure or None}
        overrides |= {"context": self.context}
        overrides |= {"workers": self.workers, "inspect": self.inspect or None, "contents": self.contents or None}
        overrides["select_tools"] = self.select_tools
        if self.upstream is not None:
            key = None if self.key_env is None else f"env:{self.key_env}"
            overrides["upstream"] = {"flag": {"url": self.upstream, "protocol": self.protocol, "key": key}}
        if self.model is not None:
            overrides["model"] = [{"match": "*", "use": self.model}]
        try:
            found = load(text, os.environ, overrides, load_calibrations(self.calibrations))
        except SettingsError as error:
            flag = next((flag for path, flag in _FLAGS.items() if error.message.startswith(path)), None)
            if flag is None:
                raise located(error, self.config) from None
            raise SettingsError(f"{flag}:{error.message.partition(':')[2]}", param=flag) from None
        if self.host is not None or self.port is not None:
            host = found.host if self.host is None else self.host
            port = found.port if self.port is None else self.port
            found = evolve(found, listen=address(host, port))
        if self.inspect and is_loopback(found.host) and not _decides_contents(text):
            found = evolve(found, contents=True)
        return found


def _decides_contents(text: str) -> bool:
    """Return whether the settings file or the environment sets `contents`."""
    return "STREAMTOOL_CONTENTS" in os.environ or re.search(r"^\s*contents\s*=", text, re.MULTILINE) is not None


class Reloads:
    """The settings of a running server, read again for each reload. `text` is the content of its settings file."""

    def __init__(self, flags: ServeFlags, settings: Settings, text: str = "") -> None:
        self._flags = flags
        self._ends_line = text.endswith("\n")
        self._current = self._read = settings
        self._listen = settings.listen

    def read(self) -> Settings:
        """Return the current settings. Raises SettingsError for settings that must not replace the accepted ones."""
        text = read_settings_file(self._flags.config, again=True)
        settings, unset = check_safety(self._flags.with_file(text)), None
        with suppress(SettingsError):  # variables may complete a table that begins in the file
            unset = self._flags.with_file("")
        self._read = check_reload(self._current, settings, unset=unset, listen=self._listen)
        if self._ends_line and text and not text.endswith("\n"):  # a value may be cut: `retries = 10` to `retries = 1`
            raise SettingsError("the settings file no longer ends with a newline; it is probably still being written")
        return settings

    def accept(self, settings: Settings | None = None) -> None:
        """Record that the server uses these settings, by default those that were read last."""
        self._current = settings or self._read


def run(flags: ServeFlags, *, only_check: bool) -> None:
    """Serve until interrupted. Raises SettingsError, or StreamtoolError if the proxy cannot start."""
    text = read_settings_file(flags.config)
    settings = check_safety(flags.with_file(text))
    screen = Screen()
    if only_check:
        open_phrases(settings)  # reports an unusable file
        ChatTemplates(settings)
        for wanted, module in ((settings.metrics, "metrics"), (settings.otel, "otel")):
            if wanted:
                importlib.import_module(f"streamtool.observe.{module}")  # fails if the extra is missing
        describe(settings, settings.listen, screen, anyio.run(recognized_lines, settings))
        screen.line(("the settings are valid", "bold green"))
        return
    logs.configure(settings)
    server = importlib.import_module(f"streamtool.cli.servers.{flags.server}")  # load only the requested server
    sys.setswitchinterval(_SWITCH_INTERVAL)
    if HAS_SIGHUP:
        signal.signal(signal.SIGHUP, lambda *_: None)  # ignored until the server installs its own handler
    caught = (_serve_alone if settings.workers == 1 else _serve_with_workers)(
        Reloads(flags, settings, text), settings, server.serve, screen
    )
    if signal.SIGINT in caught[:1]:
        raise KeyboardInterrupt


def _serve_alone(reloads: Reloads, settings: Settings, serve: _Serve, screen: Screen) -> list[int]:
    """Serve in this process and return the signals that ended it."""
    settings = _with_affordable_limits(settings)

    collector = Collector()

    def begun() -> None:
        collector.collect_all()
        if settings.inspect:
            reserve(min(settings.inspect_size, _RESERVED))
        use_huge_pages()
        announce(settings, listening, screen, proxy.engines)

    proxy = ReloadingProxy(  # fails if an extra is missing
        settings, lambda: _with_affordable_limits(reloads.read()), begun=begun, accepted=reloads.accept
    )
    with bind(settings.host, settings.port) as sock:  # last, because clients can connect from here on
        listening = address(settings.host, sock.getsockname()[1])
        with pid_file(listening):
            proxy.when_quiet(collector.collect_if_due)
            return serve(proxy, sock)


def _serve_with_workers(reloads: Reloads, settings: Settings, serve: _Serve, screen: Screen) -> list[int]:
    """Serve in several processes and return the signals that ended them."""
    if not hasattr(socket, "SO_REUSEPORT") or not hasattr(os, "fork"):
        raise SettingsError("workers: this system cannot share a port between processes", param="workers")
    with SharedState() as shared:

        def adapted(settings: Settings) -> Settings:
            return _with_affordable_limits(shared.with_shared_files(settings))

        def work(sock: socket.socket, ready: Callable[[], None]) -> None:
            collector = Collector()

            def begun() -> None:
                collector.collect_all()
                use_huge_pages()
                ready()

            proxy = ReloadingProxy(settings, lambda: adapted(reloads.read()), begun=begun, accepted=reloads.accept)
            proxy.when_quiet(collector.collect_if_due)
            serve(proxy, sock)

        def attempt() -> bytes | None:
            """Return the new settings if a proxy starts with them."""
            try:
                found = reloads.read()
                anyio.run(_start_and_close, adapted(found))
            except StreamtoolError as error:
                _log.error("the settings were not reloaded: %s", error.message)
            except Exception:  # noqa: BLE001  whatever is wrong with the new settings, the old ones are still right
                _log.exception("the settings were not reloaded")
            else:
                return pickle.dumps(found)
            return None

        def accept(tried: bytes) -> None:
            nonlocal settings
            found = pickle.loads(tried)  # noqa: S301  written by `attempt`
            reloads.accept(found)
            settings = adapted(found)
            logs.configure(settings)

        settings = adapted(settings)
        made = _open_sockets(partial(bind_sockets, settings.host, settings.port, settings.workers), settings.listen)
        listening = address(settings.host, made[0].getsockname()[1])
        with pid_file(listening):
            workers = Workers(made, work, ended=shared.discard_worker, attempt=attempt, accept=accept)
            return workers.run(lambda: announce(settings, listening, screen, anyio.run(recognized_lines, settings)))


async def _start_and_close(settings: Settings) -> None:
    """Start a proxy with these settings, and close it. Raises StreamtoolError."""
    async with Proxy(settings).running():
        pass


def _with_affordable_limits(settings: Settings) -> Settings:
    """Return the settings with limits that the process can honor."""
    return evolve(settings, limits=affordable_limits(settings.limits))


def announce(settings: Settings, listening: str, screen: Screen, engines: Mapping[str, str]) -> None:
    """Print the proxy's address and how to send it a request; with JSON logs, write a single log record instead."""
    if settings.log == "json":
        _log.info("listens on http://%s/v1", listening)
        for name, line in engines.items():
            _log.debug("upstream %s: %s", name, line)
        return
    describe(settings, listening, screen, engines)
    screen.line()
    screen.line((f"Paste this into another terminal{model_hint(settings)}:", "bold"))
    screen.line(curl_line(listening, settings))
    screen.line()


def reload(flags: ServeFlags) -> None:
    """Ask the running server to reload its settings. Raises SettingsError, StreamtoolError."""
    listening = flags.settings().listen
    process = process_at(listening)
    if process is None:
        raise StreamtoolError(f"you have no `streamtool serve` running on {listening}; use --port for another port")
    os.kill(process, signal.SIGHUP)
    Screen().line(f"asked process {process} to reload its settings; its log reports the result")


def describe(settings: Settings, listening: str, screen: Screen, engines: Mapping[str, str]) -> None:
    """Print the proxy's address, a summary of its settings, and the servers that were recognized."""
    screen.line(("streamtool", "bold cyan"), " listens on ", (f"http://{listening}/v1", "bold"))
    if not settings.upstreams:
        screen.line("  upstream  the embedded sample model (use --upstream URL for a real one)")
    for name, upstream in settings.upstreams.items():
        key = "its own key" if upstream.key else "the client's authorization"
        screen.line(f"  upstream  {name}: {upstream.url}, {upstream.protocol}, with {key}")
        if name in engines:
            screen.line(f"  engine    {engines[name]}")
    for rule in settings.models:
        target = f" at {rule.upstream}" if rule.upstream else ""
        screen.line(f"  model     {rule.match} → {rule.use or 'the same name'}{target}")
    selects = f", parameters of {settings.select_tools} tools" if settings.select_tools else ""
    screen.line(f"  mode      {settings.mode}, format {settings.format}{selects}")
    for measured in settings.calibrations:
        if settings.for_model(measured.model).calibration == measured:
            screen.line(
                f"  measured  {measured.model}: {measured.variant}, {measured.reason.removeprefix('measured ')}"
            )
    screen.line(f"  clients   {'need a key' if settings.client_keys else 'need no key'}")
    if settings.hosts:
        screen.line(f"  names     {', '.join(settings.hosts)}")
    if settings.cors_origins:
        screen.line(f"  origins   {', '.join(settings.cors_origins)}")
    if settings.metrics:
        screen.line(f"  metrics   http://{listening}/metrics")
    if settings.recordings is not None:
        screen.line("  trace     prompts and replies are written to ", (settings.recordings, "bold"))
    if settings.contents:
        screen.line("  contents  prompts and replies may appear in the log and the inspector")
    if settings.inspect:
        texts = "" if settings.contents else ", without prompts and replies (--contents shows them)"
        screen.line("  inspector ", (f"http://{listening}/inspect", "bold"), texts)


def curl_line(listening: str, settings: Settings) -> str:
    """Return a curl command that asks a question, offers a tool and streams the reply."""
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    weather = {"name": "get_weather", "description": "The weather in a city.", "parameters": city}
    body = {
        "model": "sample" if not settings.upstreams else _DEFAULT_MODEL,
        "stream": True,
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [{"type": "function", "function": weather}],
    }
    key = ' -H "authorization: Bearer $STREAMTOOL_CLIENT_KEY"' if settings.client_keys else ""
    data = shlex.quote(json.dumps(body, ensure_ascii=False))
    return f"curl -N http://{listening}/v1/chat/completions -H 'content-type: application/json'{key} -d {data}"


def model_hint(settings: Settings) -> str:
    """Return what to change in the curl command before pasting it, or an empty string."""
    named = not settings.upstreams or settings.for_model(_DEFAULT_MODEL).name != _DEFAULT_MODEL
    return "" if named else f' (replace "{_DEFAULT_MODEL}" with one of the upstream\'s models)'


def address(host: str, port: int) -> str:
    """Return the host and the port as they appear in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bind(host: str, port: int) -> socket.socket:
    """Open a listening socket. Raises StreamtoolError."""

    def made() -> socket.socket:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)

    return _open_sockets(made, address(host, port))


def _open_sockets(make: Callable[[], T], place: str) -> T:
    """Call `make` and return its result. Turn an OSError into a StreamtoolError that names the address."""
    try:
        return make()
    except OSError as error:
        # create_server appends the address to its own message
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        advice = "; choose another one with --port (0: any free port)" if error.errno == errno.EADDRINUSE else ""
        raise StreamtoolError(f"cannot listen on {place}: {reason}{advice}") from None


def affordable_limits(limits: LimitSettings) -> LimitSettings:
    """Return the limits, with no more connections than the process has file descriptors for.

    Each client connection may need another connection to the upstream. If no descriptors were left, clients could not
    be served, or even receive an error. The process's soft limit is raised as far as the settings require and the hard
    limit allows.
    """
    wanted = limits.connections
    if not wanted:
        return limits
    try:
        import resource  # noqa: PLC0415  not available on Windows
    except ImportError:
        return limits
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * wanted + _OWN_DESCRIPTORS
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return limits
    soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == needed:
        return limits
    room = max(1, (soft - _OWN_DESCRIPTORS) // 2)
    _log.warning(
        "the process may open only %d files (ulimit -n), so it accepts %d connections, not %d (limits.connections)",
        soft,
        room,
        wanted,
    )
    return evolve(limits, connections=room)
