"""A message whose header decides what it is: reasoning, text, or a call of the tool that it is addressed to.

`<|start|>assistant<|channel|>analysis<|message|>…<|end|>`: the header stands between the opener and `begin`; what it
says is a recipient and channels, in any order. It is held while it is read, since it may be no header at all.
"""

import re
from collections.abc import Generator
from functools import lru_cache

from statemachine.bodies import json_object
from statemachine.bodies.name import named
from statemachine.formats.format import Format, Message
from statemachine.formats.markers import Markers
from statemachine.machine import Machine
from statemachine.reader import Grammar, Mismatch

HEADER = 512
"""Characters of a header, at most."""
header_text = re.compile(r"[\w.:/|<>= -]{0,512}+").match
DOTTED = "functions."


@lru_cache(maxsize=64)
def begins(body: Message) -> Markers[str]:
    """What ends a header."""
    line = [("\r\n", body.begin)] if body.begin == "\n" else []
    return Markers([(body.begin, body.begin), *line])


@lru_cache(maxsize=64)
def fields(body: Message) -> tuple["re.Pattern[str]", "re.Pattern[str]"]:
    """How recipients and channels stand in a header."""
    word = r"([\w.:/-]+)"
    channel = re.compile(re.escape(body.channel) + word) if body.channel else re.compile(r"(?!)")
    return re.compile(re.escape(body.recipient) + word), channel


def read(machine: Machine, form: Format, body: Message, opener: str) -> Grammar:
    """The header; then a call is read, or the message turns out to be reasoning or text."""
    header = opener + (yield from header_of(machine, body))
    recipients, channels = fields(body)
    to = recipients.findall(header if body.recipient else header.removeprefix(opener))
    spoken = channels.findall(header)
    names = {*to[-1:], *spoken[-1:]}
    tool = next((name for name in to if name not in body.text and name not in body.reasoning), "")
    if tool:
        yield from call(machine, form, body, tool)
    elif not names or machine.thinking or not machine.fresh:
        raise Mismatch
    elif names.intersection(body.reasoning):
        machine.think(body.ends)
    else:
        machine.speak((*body.ends, body.openers[0]), verbatim=True)


def call(machine: Machine, form: Format, body: Message, tool: str) -> Grammar:
    """A message to a tool: its arguments, or a call in another format."""
    machine.candidate.format = form
    name = tool.removeprefix(DOTTED) if machine.tools is None else tool
    machine.named(name)
    yield from machine.blank()
    if machine.text[machine.at] != "{" and (yield from machine.sibling(0)):
        machine.speak(body.ends, verbatim=False)
        return
    named(machine, name)
    yield from json_object.read(machine)
    machine.finish()


def header_of(machine: Machine, body: Message) -> Generator[None, None, str]:
    """The header, consumed with its end."""
    pieces: list[str] = []
    length = 0
    while True:
        found = begins(body).match(machine.text, machine.at)
        if found is not None and found.lastindex:
            machine.take(found.end() - machine.at)
            return "".join(pieces)
        if found is None and machine.at < len(machine.text):
            text = header_text(machine.text, machine.at)
            end = text.end() if text else machine.at
            begin = machine.text.find(body.begin[0], machine.at + 1, end)
            end = end if begin < 0 else begin
            length += end - machine.at
            if end == machine.at or length > HEADER:
                raise Mismatch
            pieces.append(machine.take(end - machine.at))
        else:
            yield from machine.more()
