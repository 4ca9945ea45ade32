"""`streamtool probe`: find out what an upstream can do, and print the settings for it.

`streamtool.probe` sends the requests; this module prints the findings as a table, followed by TOML for a settings file.
The TOML contains only settings that were found to work: `rescue` mode if the model makes native calls or writes its
calls into the text, and otherwise `emulate` mode with the format that the model obeys most often.
"""

import glob
import ipaddress
import json
import os
import re
import sys
from collections.abc import Iterator
from functools import partial
from typing import assert_never
from urllib.parse import urlsplit

import anyio
from attrs import asdict, frozen

from streamtool.cli.columns import WIDTH, fit, replace_controls
from streamtool.cli.common import Screen
from streamtool.core.errors import SettingsError
from streamtool.core.json_value import json_line
from streamtool.probe import Findings, ProbeAnswer, Stream, Taught, ToolFindings, probe
from streamtool.settings import UpstreamSettings, load

_WIDTH = 20
_CLEAR = "\r\x1b[K"
"""Clears the line of a terminal."""
_FLAGS = {"url": "URL", "protocol": "--protocol", "key": "--key-env"}
"""Upstream setting -> the flag or argument that sets it."""


@frozen
class ProbeFlags:
    """Arguments and flags of `streamtool probe`."""

    url: str
    protocol: str | None = None
    model: str | None = None
    key_env: str | None = None
    tries: int = 1
    seconds: float = 120.0

    def upstream(self) -> UpstreamSettings:
        """Return the upstream to probe. Raises SettingsError."""
        fields = {"url": self.url, "protocol": self.protocol, "key": self.key_env and f"env:{self.key_env}"}
        name = name_of(self.url)
        environ = {key: value for key, value in os.environ.items() if key == self.key_env}
        try:
            return load(None, environ, {"upstream": {name: fields}}).upstreams[name]
        except SettingsError as error:
            place, _, what = error.message.partition(": ")
            flag = _FLAGS[place.rpartition(".")[2]]
            raise SettingsError(f"{flag}: {what}", param=flag, code=error.code) from None


def run(flags: ProbeFlags, *, as_json: bool) -> None:
    """Probe the upstream and print the findings. Raises StreamtoolError."""
    upstream = flags.upstream()
    watch = _print_progress if sys.stderr.isatty() else _ignore_progress
    ask = partial(probe, upstream, flags.model, tries=flags.tries, seconds=flags.seconds, watch=watch)
    try:
        findings: Findings = anyio.run(ask)
    finally:
        if sys.stderr.isatty():
            print(_CLEAR, end="", file=sys.stderr, flush=True)
    settings = settings_text(findings, upstream, flags.key_env)
    if as_json:
        fields = asdict(findings)
        print(json_line({**fields.pop("target"), **fields, "settings": settings}))
        return
    screen = Screen()
    for label, text in rows(findings):
        screen.line((f"{label:<{_WIDTH}}", "dim"), text)
    screen.line()
    screen.line(("# Settings for this upstream", "bold cyan"))
    screen.line(settings, end="")
    screen.line()
    screen.line(("# `streamtool eval` measures how often the model makes the right call", "dim"))


def _print_progress(question: str) -> None:
    """Replace the line that shows the progress."""
    print(_CLEAR + fit(replace_controls(f"probing: {question}"), WIDTH - 1), end="", file=sys.stderr, flush=True)


def _ignore_progress(question: str) -> None:
    """Print no progress, because standard error is not a terminal."""


# --- the table -------------------------------------------------------------------------------------------------------


def rows(found: Findings) -> Iterator[tuple[str, str]]:
    """Yield the label and text of each row of the table."""
    target = found.target
    listed = "lists no models" if target.models is None else f"lists {count(len(target.models), 'model')}"
    yield "upstream", f"{target.url}, speaks {target.protocol}, {listed}"
    yield "model", target.model
    yield "streams", _stream(found.stream)
    yield "native tools", _tools(found.tools)
    yield "system role", _answer(found.system, "obeyed", "accepted, but not obeyed")
    yield "two user messages", _answer(found.neighbours, "accepted", "")
    yield "special markers", _markers(found)
    yield "prefill", _answer(found.prefill, "the model continues it", "the model starts over")
    yield "JSON Schema", _answer(found.json_schema, "honoured", "ignored")
    yield "stop strings", _answer(found.stop, "honoured", "ignored")
    yield "chat template", _template(found)
    for taught in found.formats:
        yield f"format {taught.format}", _taught(taught)
    yield "requests", f"{found.requests} sent"


def count(number: int, noun: str) -> str:
    """Return a number and a noun."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _detail(text: str) -> str:
    return f": {printable(text)}" if text else ""


def _answer(answer: ProbeAnswer, yes: str, no: str) -> str:
    match answer.word:
        case "yes":
            return yes
        case "no":
            return no + _detail(answer.said)
        case "refused":
            return "refused" + _detail(answer.said)
        case "failed":
            return "no answer" + _detail(answer.said)
        case "unclear":
            return "unclear" + _detail(answer.said)
        case _:
            assert_never(answer.word)


def _stream(stream: Stream) -> str:
    times = f"first byte after {stream.first:.2f} s, last after {stream.seconds:.2f} s"
    match stream.word:
        case "streamed":
            return f"yes, {stream.pieces} pieces; {times}"
        case "buffered":
            return f"no, the stream arrives in one piece; {times}"
        case "whole":
            return f"no, one document; {times}"
        case "failed":
            return "no answer" + _detail(stream.said)
        case _:
            assert_never(stream.word)


def _tools(tools: ToolFindings) -> str:
    words = {
        "calls": "called",
        "leaks": f"the call is in the text, as {tools.format}",
        "ignored": "accepted, but not called",
        "denied": "the upstream reports that it supports none",
        "none": "not part of this protocol",
        "refused": "refused",
        "failed": "no answer",
        "unclear": "unclear",
    }
    return words[tools.word] + ("" if tools.word == "calls" else _detail(tools.said))


def _taught(taught: Taught) -> str:
    words = {
        "obeyed": "obeyed",
        "other": "the right call, but not in this format",
        "wrong": "a wrong call",
        "no call": "no call",
        "refused": "refused",
        "failed": "no answer",
        "unclear": "unclear",
    }
    times = f", {taught.obeyed} of {taught.tries}" if taught.tries > 1 else ""
    return words[taught.word] + times + _detail(taught.said)


def _template(found: Findings) -> str:
    """Describe the chat template, the format found in it, and whether the model obeys this format."""
    told = found.target.template
    if not told.where:
        return "not provided by the upstream"
    if told.format is None:
        return f"found at {told.where}, without a known format"
    special = "" if told.taught == told.format else ", whose markers are special tokens"
    words = {True: "; confirmed", False: "; but the model does not obey it", None: ""}
    kept = "" if special else words[found.confirmed]
    opens = f"; the prompt opens {told.opener}" if told.opener else ""
    return f"found at {told.where}, contains {told.mark}: {told.format}{special}{kept}{opens}"


def _markers(found: Findings) -> str:
    by_word: dict[str, list[str]] = {}
    for marker, word in found.markers.items():
        by_word.setdefault(word, []).append(marker)
    names = {"yes": "kept", "no": "stripped", "unclear": "unclear", "failed": "no answer"}
    return "; ".join(f"{name} {' '.join(by_word[word])}" for word, name in names.items() if word in by_word)


def printable(text: str) -> str:
    """Return the text with unprintable characters replaced."""
    return "".join(char if char.isprintable() else "·" for char in text)


# --- the settings ----------------------------------------------------------------------------------------------------


def settings_text(found: Findings, upstream: UpstreamSettings, key_env: str | None) -> str:
    """Return the settings as TOML. They name the variable that holds the key and never contain the key itself."""
    target = found.target
    lines = [f"[upstream.{upstream.name}]", f"url = {toml(target.url)}", f"protocol = {toml(target.protocol)}"]
    if key_env is not None:
        lines.append(f"key = {toml(f'env:{key_env}')}")
    if target.protocol == "completions":
        lines.append(f"template = {toml(upstream.template)}  # as used for the probe")
    lines += ["", "[[model]]", f"match = {toml(glob.escape(target.model))}", f"upstream = {toml(upstream.name)}"]
    if found.tools.word in ("calls", "leaks"):
        lines.append('mode = "rescue"  # native tools; calls that leak into the text are found too')
        return "\n".join(lines) + "\n"
    lines.append('mode = "emulate"')
    lines.append(f"format = {toml(found.format)}" if found.format else "# no format was obeyed; see the replies above")
    if found.forcing is not None:
        lines.append(f"forcing = {toml(found.forcing)}  # when a client demands a call")
    if not found.system_role:
        lines.append("system_role = false")
    return "\n".join(lines) + "\n"


def toml(text: str) -> str:
    """Return the text as a TOML string."""
    quoted = json.dumps(text, ensure_ascii=False)
    return re.sub(r"[\x7f-\x9f\u2028\u2029]", lambda char: f"\\u{ord(char[0]):04x}", quoted)


def name_of(url: str) -> str:
    """Return a name for the upstream in the settings: `sample`, `local`, or a name derived from its host."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        host = ""
    if url == "sample" or not host:
        return "sample"
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    return "local" if local else re.sub(r"[^a-z0-9]+", "_", host.lower()).strip("_") or "upstream"
