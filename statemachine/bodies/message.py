"""Messages whose header decides what they are: reasoning, text, or a call to the tool that they are addressed to.

In `<|start|>assistant<|channel|>analysis<|message|>…<|end|>`, the header is the text between the opener and `begin`. It
contains a recipient and channels, in any order. It is buffered while it is being read, since it may turn out not to be
a header.
"""

import re
from collections.abc import Callable, Generator
from functools import lru_cache

from statemachine.bodies import json_object, parameters
from statemachine.bodies.name import set_name
from statemachine.bodies.parameter_markers import Marker, marker_at, tables
from statemachine.endings import ends_call
from statemachine.formats.format import Format, MessageBody, Parameters
from statemachine.formats.markers import Markers
from statemachine.formats.openers import closers_of_parameters, openers_in_values
from statemachine.machine.machine import Machine
from statemachine.machine.states import Input
from statemachine.stream.buffer import Grammar, Mismatch
from statemachine.stream.emitter import Sink

MAX_HEADER = 512
"""Maximum length of a header, in characters."""
HEADER = r"\w.:/|<>=? -"
"""Characters of headers, in character-class syntax."""
line_ends = re.compile(r"(?:\r?\n){1,4}+|\r\Z").match
DOTTED = "functions."


@lru_cache(maxsize=64)
def header_ends(body: MessageBody) -> Markers[str]:
    """Return the markers that end a header; those that end the entire message have an empty value."""
    line = [("\r\n", body.begin)] if body.begin == "\n" else []
    return Markers([(body.begin, body.begin), *line, *((end, "") for end in body.ends)])


@lru_cache(maxsize=64)
def header_patterns(body: MessageBody) -> tuple["re.Pattern[str]", "re.Pattern[str]"]:
    """Return the patterns that find recipients and channels in a header."""
    word = r"([\w.:/-]+)"
    channel = re.compile(re.escape(body.channel) + word) if body.channel else re.compile(r"(?!)")
    return re.compile(re.escape(body.recipient) + word), channel


@lru_cache(maxsize=64)
def header_text(body: MessageBody) -> Callable[[str, int], re.Match[str] | None]:
    """Return a match for the text of a header, including the characters of its markers."""
    own = "".join(sorted({*body.recipient, *body.channel} - set("\r\n")))
    return re.compile(f"[{HEADER[:-1]}{re.escape(own)}-]{{0,{MAX_HEADER}}}+").match


def read(machine: Machine, form: Format, body: MessageBody, opener: str) -> Grammar:
    """Read the header; then read a call, or begin a span of reasoning or text."""
    text, begun = yield from header_of(machine, body)
    if opener in body.results:
        discard_result(machine, form, begun=begun)
        return
    header = opener + text
    recipients, channels = header_patterns(body)
    to = recipients.findall(header if body.recipient else header.removeprefix(opener))
    spoken = channels.findall(header)
    names = {*to[-1:], *spoken[-1:]}
    tool = next((name for name in to if name not in body.text and name not in body.reasoning), "")
    if tool and not begun:
        raise Mismatch
    built_in = tool.startswith(body.built_in) and not machine.tools.accepts_any and tool not in machine.tools
    if tool and not built_in:
        yield from call(machine, form, body, tool)
    elif not names or machine.frames.reasoning or not machine.text_state.at_message_start:
        raise Mismatch
    elif built_in:
        machine.begin_reasoning(body.ends)
    elif names.intersection(body.reasoning):
        # Only a message to a tool ends with the closer of calls, which reasoning may mention.
        machine.begin_reasoning((*(end for end in body.ends if end != form.close), body.openers[0]))
    else:
        machine.begin_message((*body.ends, body.openers[0]))


def discard_result(machine: Machine, form: Format, *, begun: bool) -> None:
    """Discard a message that directly follows a call and contains a tool result, which the model fabricated.

    Raises:
        Mismatch: the message does not follow a call, or has no content.
    """
    reader, past = machine.reader, machine.text_state
    if not begun or machine.frames.reasoning or not past.at_message_start or reader.emitter.index < 0:
        raise Mismatch
    machine.candidate.format = form
    reader.emitter.set_discard_reason("invented")
    reader.release(Sink.DISCARD)
    machine.frames.apply(Input.BREAK)


def call(machine: Machine, form: Format, body: MessageBody, tool: str) -> Grammar:
    """Read a message to a tool: its arguments, or a call in another format."""
    reader = machine.reader
    machine.candidate.format = form
    spelled = DOTTED in body.written or not body.written
    name = tool.removeprefix(DOTTED) if spelled and tool not in machine.tools else tool
    machine.set_name(name)
    yield from machine.skip_whitespace()
    # If every name is accepted, only the content shows whether the recipient is one that the model was trained with.
    if tool.startswith(body.built_in) and machine.tools.accepts_any and reader.text[reader.at] != "{":
        machine.begin_reasoning(body.ends)
        return
    if reader.text[reader.at] != "{" and (yield from ends_call(machine, 0)):
        machine.open_message_wrapper(body.ends)
        return
    set_name(machine, name)
    if body.parameters is not None and (yield from begins_parameters(machine, form, body.parameters)):
        yield from parameters.read(machine, form, body.parameters)
    else:
        yield from json_object.read(machine)
    machine.end_body()


def line_end(machine: Machine) -> Generator[None, None, int]:
    """Return the length of the line ends here if a token of the header follows them, or 0."""
    reader = machine.reader
    while (found := line_ends(reader.text, reader.at)) is not None:
        after = reader.text[found.end() : found.end() + 2]
        if reader.ended or after not in ("", "<"):
            return found.end() - reader.at if "<|".startswith(after) else 0
        yield
    return 0


def begins_parameters(machine: Machine, form: Format, body: Parameters) -> Generator[None, None, bool]:
    """Return whether marked parameters begin here."""
    mark, _ = yield from marker_at(
        machine, tables(body, openers_in_values(form), closers_of_parameters(form)).between, 0
    )
    return mark is Marker.KEY


def header_of(machine: Machine, body: MessageBody) -> Generator[None, None, tuple[str, bool]]:
    """Consume the header and the marker that begins the message; return the header and whether a message follows.

    A marker that ends the message before it has begun is not consumed.
    """
    reader = machine.reader
    markers, match_text = header_ends(body), header_text(body)
    pieces: list[str] = []
    length = 0
    while True:
        found = markers.match(reader.text, reader.at)
        if found is not None and found.lastindex:
            begun = bool(markers.values[found.lastindex - 1])
            reader.take(found.end() - reader.at if begun else 0)
            return "".join(pieces), begun
        if found is None and (end := (yield from line_end(machine))):
            reader.take(end)
            pieces.append(" ")
        elif found is None and reader.at < len(reader.text):
            text = match_text(reader.text, reader.at)
            end = text.end() if text else reader.at
            begin = reader.text.find(body.begin[0], reader.at + 1, end)
            size = min((end if begin < 0 else begin) - reader.at, MAX_HEADER - length)
            if not size:
                raise Mismatch
            length += size
            pieces.append(reader.take(size))
        else:
            yield from reader.more()
