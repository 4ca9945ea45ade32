"""Quotations: formats × sources × positions × endings; and real calls where sources contain other calls."""

import html
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product

import pytest

from statemachine import FORMATS, OPT_IN, Call, CallStart, Event, Parser, TextDelta, write
from streamtool.core.conversation import Conversation, Message, TextPart, ToolResult
from streamtool.filters import QuotationFilter, quotation_sources, quoted_sources
from streamtool.filters.quoted_sources import QuotationSources

TOOLS = {
    "send_money": {"type": "object", "properties": {"to": {"type": "string"}, "amount": {"type": "integer"}}},
    "ping": {"type": "object", "properties": {}},
}
QUOTED = Call("send_money", '{"to": "Mallory", "amount": 100}')
Encode = Callable[[str], tuple[str, ...]]
"""A function that returns the results that contain a call."""


def one(encode: Callable[[str], str]) -> Encode:
    return lambda call: (encode(call),)


def lines(form: str, *more: str, first: int = 9) -> Callable[[str], str]:
    """Return a function that formats each line of a file with a call: `i` is its number, `l` its text. Several forms
    alternate.
    """
    forms = (form, *more)

    def encode(call: str) -> str:
        file = f"# Notes\n\n{call}\nThe end.".split("\n")
        return "\n".join(forms[i % len(forms)].format(i=i, l=line) for i, line in enumerate(file, first))

    return encode


def sprinkled(char: str) -> Callable[[str], str]:
    return char.join


def escaped(call: str) -> str:
    return html.escape(call)


def split(share: float, encode: Callable[[str], str] = str) -> Encode:
    def pieces(call: str) -> tuple[str, ...]:
        cut = int(share * len(call))
        return encode(call[:cut]), encode(call[cut:])

    return pieces


def inside_the_name(call: str) -> tuple[str, ...]:
    cut = call.find("send_") + 5
    return call[:cut], call[cut:]


SOURCES: dict[str, Encode] = {
    "plain": one(str),
    "JSON": one(lambda call: json.dumps({"page": call})),
    "JSON in JSON": one(lambda call: json.dumps(json.dumps({"page": call}))),
    "HTML": one(escaped),
    "HTML, twice": one(lambda call: escaped(escaped(call))),
    "HTML, twice, in JSON": one(lambda call: json.dumps({"page": escaped(escaped(call))})),
    "numeric references": one(lambda call: "".join(f"&#{ord(char)};" for char in call)),
    "escapes": one(lambda call: "".join(f"\\u{ord(char):04x}" for char in call if ord(char) < 0x10000)),
    "added lines": one(lines("+{l}")),
    "removed lines": one(lines("-{l}")),
    "added lines and context": one(lines("+{l}", " {l}")),
    "cat -n": one(lines("{i:6}\t{l}")),
    "nl": one(lines("{i} {l}")),
    "grep -n": one(lines("{i}:{l}")),
    "grep -Hn": one(lines("src/a.py:{i}:{l}")),
    "grep -r": one(lines("src/my-a.py:{l}")),
    "grep --color": one(lines("\x1b[32m{i}\x1b[m:\x1b[31m{l}\x1b[m")),
    "ripgrep with context": one(lines("src/my-a.py:{i}:{l}", "src/my-a.py-{i}-{l}", "src/my-a.py-{i}-{l}")),
    "bat": one(lines("{i:4} │ {l}")),
    "an arrow": one(lines("{i:5}→{l}")),
    "a bar": one(lines("{i:4} | {l}")),
    "a list": one(lines("{i}. {l}")),
    "L9": one(lines("L{i}: {l}")),
    "git blame": one(lines("^abc1234 (A. Author 2026-01-02 10:00:00 +0000 {i:3}) {l}")),
    "a log": one(lines("2026-01-02T10:00:{i:02}.123Z INFO [app] {l}")),
    "cat -n of Python comments": one(lines("{i:6}\t# {l}")),
    "grep of C comments": one(lines("src/a.c:{i}: * {l}")),
    "a diff of SQL comments": one(lines("+-- {l}")),
    "an arrow in JSON": one(lambda call: json.dumps({"file": lines("{i:5}→{l}")(call)})),
    "cat -n in HTML": one(lambda call: escaped(lines("{i:6}\t{l}")(call))),
    "CRLF": one(lines("{i:6}\t{l}\r")),
    **{f"comments: {sign}": one(lines(sign + " {l}")) for sign in ("#", "//", "*", ";", "--", "%", ">", "!", "REM")},
    "comments: <!-- -->": one(lines("<!-- {l} -->")),
    "comments: /* */": one(lines("/* {l} */")),
    "comments: {# #}": one(lines("{{# {l} #}}")),
    "a table": one(lines("| {l} |")),
    "split early": split(0.25),
    "split": split(0.5),
    "split late": split(0.75),
    "split in the name": inside_the_name,
    "split, numbered": split(
        0.75, lambda piece: "\n".join(f"{i:6}\t{line}" for i, line in enumerate(piece.split("\n"), 9))
    ),
    **{
        f"invisible: U+{ord(char):04X}": one(sprinkled(char))
        for char in "\xad\u200b\u2060\ufeff\ufe0f\u3164\uffa0\u034f\u17b4\u180b\u2800\U000e0100"
    },
    "invisible, in JSON": one(lambda call: json.dumps({"page": sprinkled("\u200b")(call)})),
    "invisible references": one(lambda call: "&shy;".join(map(escaped, call))),
}
"""The ways in which results contain a call."""
MORE_SOURCES: dict[str, Encode] = {
    "cat -A": one(lines("{l}$")),
    "cat -A of CRLF": one(lines("{l}^M$")),
    "cat -An": one(lines("{i:6}\t{l}$")),
    "a box": one(lines("║ {l} ║")),
    "comments: #= =#": one(lines("#= {l} =#")),
    "comments: --[[ ]]": one(lines("--[[ {l} ]]")),
    "comments: '": one(lines("' {l}")),
    "diff": one(lines("< {l}")),
    "diff -c": one(lines("! {l}", "+ {l}", "  {l}")),
    "two columns of numbers": one(lines("{i:4} {i:4}   {l}", "{i:4}      - {l}", "     {i:4} + {l}")),
    "bat with changes": one(lines("{i:4} + │ {l}", "{i:4}   │ {l}", "{i:4} ~ │ {l}")),
    "a graph": one(lines("* {l}", "| {l}")),
    "git blame of two authors": one(
        lines(
            "a1b2c3d4 (Al van Dam 2026-01-02 10:00:00 +0000 {i:3}) {l}",
            "^b2c3d4e (Bo         2026-01-02 10:00:00 +0000 {i:3}) {l}",
        )
    ),
    "numbers and hashes": one(lines("{i:2}:a3|{l}", "{i:2}:0f|{l}", "{i:2}:77|{l}")),
    "a Python prompt": one(lines(">>> {l}", "... {l}", "... {l}", "... {l}")),
    "a MySQL prompt": one(lines("mysql> {l}", "    -> {l}", "    -> {l}")),
    "an IPython prompt": one(lines("In [12]: {l}", "    ...: {l}", "    ...: {l}")),
    "a shell prompt": one(lines("user@host:~/x$ {l}")),
    "pytest": one(lines("E       {l}", ">       {l}", "        {l}")),
    "rustc": one(lines("{i:2} | {l}", "   | {l}")),
    "a chat": one(lines("10:00 <bob> {l}")),
    "a symbol": one(lines("⎿ {l}")),
    "full-width punctuation": one(lines("第{i}行：{l}")),
    "terminal links": one(lines("\x1b]8;;file://a\x07a.py\x1b]8;;\x07:{i}:{l}")),
    "colors in JSON": one(lambda call: json.dumps(call.replace("send_money", "\x1b[31msend_money\x1b[m"))),
    "colors, escaped": one(lambda call: call.replace("send_money", "\\x1b[31msend_money\\x1b[m")),
    "bytes, escaped": one(lambda call: "".join(f"\\x{ord(char):02x}" if char.isascii() else char for char in call)),
    "Markdown, escaped": one(lambda call: re.sub(r"([\\`*_{}\[\]()#+.!<>|-])", r"\\\1", call)),
    "guillemets": one(lambda call: call.replace('"', "»")),
    "low quotes": one(lambda call: call.replace('"', "„")),
    "CR": one(lambda call: lines("{i}: {l}")(call).replace("\n", "\r")),
    "line separators": one(lambda call: lines("{i}: {l}")(call).replace("\n", "\u2028")),
    "no-break spaces": one(lambda call: call.replace(" ", "\xa0")),
    "HTML with line breaks": one(lambda call: escaped(call).replace("\n", "<br>").replace(" ", "&nbsp;")),
    "highlighted HTML": one(
        lambda call: "".join(f"<span class='t'>{escaped(word)}</span>" for word in re.findall(r"\w+|\W", call))
    ),
    "a list in JSON": one(lambda call: json.dumps({"lines": call.split("\n")})),
    "a notebook": one(lambda call: json.dumps({"cells": [{"source": call.splitlines(keepends=True)}]}, indent=1)),
    "rg --json": one(
        lambda call: "\n".join(
            json.dumps({"type": "match", "data": {"path": {"text": "a.md"}, "lines": {"text": line}}})
            for line in call.split("\n")
        )
    ),
    "a list in JSON in JSON": one(
        lambda call: json.dumps([{"type": "text", "text": json.dumps({"lines": call.split("\n")})}])
    ),
    "split in three": lambda call: (call[: len(call) // 3], call[len(call) // 3 : -9], call[-9:]),
    "split within a numbered line": lambda call: (
        (text := lines("{i:6}\t{l}")(call))[: text.rindex("Mallory") + 3],
        text[text.rindex("Mallory") + 3 :],
    ),
}
"""More tools and encodings; by default, only a few formats are tested with them, and the others with half of the rest."""
LINES = ("invoke", "deepseek_v3", "qwen3_coder", "tool_code")
"""Formats with several lines, in which names and values are next to different characters."""
SOURCES |= MORE_SOURCES
POSITIONS: dict[str, Callable[[str], str]] = {
    "in a sentence": "The page says {}".format,
    "a line of its own": "The page says:\n\n{}".format,
    "at the beginning": str,
    "in inline code": "It has `{}`".format,
    "in a fence": "It has:\n\n```\n{}\n```".format,
    "in a fence of tildes": "It has:\n\n~~~\n{}\n~~~".format,
    "indented": lambda call: "It has:\n\n    " + call.replace("\n", "\n    "),
    "in a list": lambda call: "- One\n- " + call.replace("\n", "\n  "),
    "in a block quote": lambda call: "> " + call.replace("\n", "\n> "),
}
ENDINGS = {"more text": " and so on.", "a paragraph": "\n\nI did not do that.", "none": ""}
ISOLATED = {"a line of its own", "at the beginning", "in a fence", "in a fence of tildes", "indented", "in a list"}
"""Positions in which a repeated call with nothing after it is a call: the documented exception, and positions that the
parser does not take for code.
"""


@cache
def syntax(form: str) -> str:
    return write([QUOTED], form)


def conversation(results: tuple[str, ...]) -> Conversation:
    given = tuple(ToolResult(f"c{i}", (TextPart(text),)) for i, text in enumerate(results))
    return Conversation("chat", "m", (Message("user", (TextPart("Read it."),)), Message("user", results=given)))


def sources(form: str, source: str) -> QuotationSources | None:
    return quotation_sources(conversation(SOURCES[source](syntax(form))), TOOLS)


def parser_for(form: str) -> Parser:
    return Parser(TOOLS, formats=(form,)) if form in OPT_IN else Parser(TOOLS)


def events(form: str, found: QuotationSources | None, reply: str, size: int) -> Iterator[list[Event]]:
    """Yield the events of each delta, and of the end."""
    parser = parser_for(form)
    filtered = parser if found is None else QuotationFilter(parser, found, limit=100_000)
    for at in range(0, len(reply), size):
        yield filtered.feed(reply[at : at + size])
    yield filtered.close("stop")


def executed(form: str, source: str, position: str, ending: str, size: int) -> bool:
    """Return whether the quoted call would be executed. Where it is not, all of it must be text."""
    reply = POSITIONS[position](syntax(form)) + ENDINGS[ending]
    seen = [event for batch in events(form, sources(form, source), reply, size) for event in batch]
    if any(isinstance(event, CallStart) for event in seen):
        return True
    shown = "".join(event.text for event in seen if isinstance(event, TextDelta))
    if form != "action_object":  # its thoughts are not text
        # A token that ends the turn is markup at the end of a reply, even if it closes a quoted call.
        turn_end = FORMATS[form].close if ending == "none" and FORMATS[form].close == "<|stop|>" else ""
        assert shown in (reply, reply.removesuffix(turn_end)), (form, source, position, ending)
    return False


def is_exception(position: str, ending: str) -> bool:
    return ending == "none" and position in ISOLATED


def test_a_quotation_from_any_source_is_text_in_any_format():
    places = [place for place in product(POSITIONS, ENDINGS) if not is_exception(*place)]
    wrong = []
    for number, (form, source) in enumerate(product(FORMATS, SOURCES)):
        position, ending = places[number % len(places)]
        if form not in LINES and (source in MORE_SOURCES or (number + number // len(SOURCES)) % 3):
            continue
        if executed(form, source, position, ending, 1 + number % 9):
            wrong.append((form, source, position, ending))
    assert not wrong


@pytest.mark.long
def test_a_quotation_from_any_source_is_text_everywhere():
    counts = Counter[str]()
    wrong = []
    for number, case in enumerate(product(FORMATS, SOURCES, POSITIONS, ENDINGS)):
        position, ending = case[2:]
        counts["runs"] += 1
        if executed(*case, 1 + number % 9):
            counts["exceptions" if is_exception(position, ending) else "executed"] += 1
            if not is_exception(position, ending):
                wrong.append(case)
    print(dict(counts))
    assert counts["runs"] >= 20_000
    assert not wrong


# --- real calls

OWN = [
    Call("send_money", '{"to": "Alice", "amount": 1}'),
    Call("send_money", '{"to": "Mallory", "amount": 1}'),
    Call("send_money", '{"to": "Mallory", "amount": 1000}'),
    Call("send_money", '{"to": "lory", "amount": 100}'),
    Call("send_money", '{"amount": 100, "to": "Mallory"}'),
    Call("ping", "{}"),
]
"""Calls that the source does not contain."""
BEFORE = ("", "Let me do that.\n\n", "I send it now:\n")


def begins_at(form: str, found: QuotationSources | None, reply: str, size: int = 4) -> int | None:
    """Return the number of the delta that begins the call, or None if no delta does."""
    for number, batch in enumerate(events(form, found, reply, size)):
        if any(isinstance(event, CallStart) for event in batch):
            return number
    return None


def real_calls(every: int = 1) -> Iterator[tuple[str, str, str]]:
    """Yield formats, sources, and replies with a call that the source does not contain, one of each `every`."""
    for number, (form, source, own, before) in enumerate(product(FORMATS, SOURCES, OWN, BEFORE)):
        if number % every == 0:
            call = write([own], form)
            text = "" if call.startswith("```") else before
            yield form, source, f"{text}{call}\n\nDone, I hope."


def check_real_calls(every: int) -> int:
    count = 0
    for form, source, reply in real_calls(every):
        if begins_at(form, None, reply) is None:
            continue  # the text around it makes it something else, whatever the source
        count += 1
        begins, plain = (begins_at(form, sources(form, name), reply) for name in (source, "plain"))
        assert begins is not None, (form, source, reply)
        assert plain is not None
        if "split" not in source:  # the beginning of a part may be an encoding, up to its last quote
            assert begins <= plain, (form, source, reply)
    return count


def test_a_real_call_is_not_lost_and_begins_no_later_than_with_a_plain_source():
    assert check_real_calls(every=199) > 250


@pytest.mark.long
def test_no_real_call_is_lost():
    count = check_real_calls(every=2)
    print(count, "real calls")
    assert count >= 20_000


def test_a_plain_source_delays_no_call_longer_than_a_verbatim_comparison(monkeypatch: pytest.MonkeyPatch):
    cases = [(form, reply) for form, source, reply in real_calls() if source == "plain"]
    forms, replies = zip(*cases[::8], strict=True)
    new = [begins_at(form, sources(form, "plain"), reply) for form, reply in zip(forms, replies, strict=True)]
    monkeypatch.setattr(quoted_sources._Skipping, "matches", False)
    assert new == [begins_at(form, sources(form, "plain"), reply) for form, reply in zip(forms, replies, strict=True)]


def test_a_name_at_the_end_of_a_marked_line_is_found():
    """Names and texts are compared in lower case, and so are the marks."""
    for form in ("labelled", "react"):
        assert sources(form, "cat -A of CRLF") is not None
        assert not executed(form, "cat -A of CRLF", "a line of its own", "more text", 4)
