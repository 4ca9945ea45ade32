"""Upstream replies, composed of parts, so that the expected result is known without a parser.

A part consists of text and of the content that the client gets from it. A broken reply is one that is cut off after one
of its deltas.
"""

import json
import random
from collections.abc import Iterator
from typing import Any, Final, Literal

from attrs import evolve, frozen

from statemachine import FORMATS, OPT_IN, Call, write
from statemachine.formats import Envelope, JsonBody, MessageBody

Key = Literal["content", "reasoning_content", "tool_calls"]
Calls = tuple[tuple[str, dict[str, Any]], ...]

PROPERTIES: Final[dict[str, Any]] = {
    "write_file": {"path": {"type": "string"}, "content": {"type": "string"}},
    "add": {"a": {"type": "integer"}, "b": {"type": "number"}, "exact": {"type": "boolean"}},
    "search": {"query": {"type": "string"}, "tags": {"type": "array"}, "options": {"type": "object"}},
}
"""Properties of the offered tools."""
LISTENED: Final = tuple(name for name in FORMATS if name not in OPT_IN)
PROSE: Final = (
    "The river rises in the hills, and nobody knows why it turns west.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "敏捷的棕色狐狸跳过了懒狗。 Быстрая лиса. 😀👩‍👩‍👧‍👦 ﷽ é",
    "If a < b and b > c, then x[0] = {1, 2}; the rest is <em>left</em> to you.",
    "Here is some code:\n\n```python\nfor i in range(3):\n    print({'name': i})  # <b>\n```\nIt counts.",
    "The tag `<tool_call>` opens a call, and `</tool_call>` closes it.",
    'A record: {"id": 7, "title": "none", "tags": ["a", "b"]} is what it holds.',
    "- one\n- two\n\n| a | b |\n|---|---|\n| 1 | 2 |",
    "The formula $\\frac{a}{b}$ and C:\\temp\\new, \"quoted\" and 'quoted'.",
)
ODD: Final = ('"', "\\", "\n", "\t", "{", "}", "</tool_call>", "é", "😀", "語", "'", "`", "<b>", "\u2028", "\x00")
"""Content for strings in formats that write JSON."""
PLAIN: Final = ("é", "😀", "語", " ", ", ", "-", "x = 1\n", "word ", "7")
"""Content for strings in the other formats, where some characters may end a value."""
BREAKS: Final = ("reset", "closed", "ended", "error event", "silence", "no JSON", "half a character", "gzip breaks")
"""Faults after one of the reply's deltas."""
REFUSALS: Final = ("nothing", "status 429", "status 500", "status 503, cut", "no HTTP", "a page", "an error as 200")
"""Responses sent instead of a reply."""
LIES: Final = (
    "content type",
    "reason",
    "no [DONE]",
    "document",
    "a reason each",
    "gzip",
    "until closed",
    "two reasons",
)
"""False claims in a reply that is nevertheless complete."""
HUGE: Final = 100_000
"""Number of characters in a huge delta."""
OPENER, CLOSER = "<think>", "</think>"


@frozen
class Part:
    """A piece of the text: line breaks, and the content after them."""

    kind: Literal["text", "thought", "calls"]
    leads: str
    written: str
    calls: Calls = ()


@frozen
class Shown:
    """The result that a client should get."""

    text: str = ""
    reasoning: str = ""
    calls: Calls = ()
    reason: str | None = "stop"
    """Reason why the reply ended; None if it was cut off."""
    rest: str = ""
    """Text after the last expected part, if the reply was cut off; it may be shown if no call has begun in it."""
    begun: Calls = ()
    """Calls in `rest`."""
    discarded: int = 0
    """Minimum number of characters of discarded names and arguments."""


@frozen
class Reply:
    """The upstream's reply to one request."""

    parts: tuple[Part, ...]
    thought: str = ""
    """Reasoning in its own field, sent before everything else."""
    native: Calls = ()
    """Calls in their own field, sent after everything else."""
    deltas: tuple[tuple[Key, Any], ...] = ()
    reason: str = "stop"
    lie: str = ""
    fault: str = ""
    until: int = 0
    """Number of deltas before the fault."""
    pace: float = 0.0
    """Seconds between two deltas."""
    escaped: bool = False
    """Whether non-ASCII characters are escaped."""
    sizes: tuple[int, ...] = ()
    """Sizes of the sent pieces in bytes, used in turn; if the tuple is empty, each event is one piece."""
    counted: bool = True
    """Whether the upstream reports token usage."""

    @property
    def said(self) -> tuple[tuple[Key, Any], ...]:
        """The deltas that are sent."""
        return self.deltas[: self.until] if self.fault else self.deltas

    def field(self, key: Key) -> str:
        """Return all text that is sent in this field."""
        joined = "".join(value for its, value in self.said if its == key)
        return joined.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def untouched(self) -> Shown:
        """Return the expected result for a client without tools."""
        reason = None if self.fault else "stop" if self.lie == "reason" else self.reason
        return Shown(
            self.field("content"), self.field("reasoning_content"), reason=reason, discarded=_size(self.native)
        )

    def shown(self, *, forbidden: bool = False) -> Shown:
        """Return the expected result for a client with tools; `forbidden` means that its calls are discarded."""
        left = len(self.field("content"))
        found = Shown(reasoning=self.field("reasoning_content"))
        for part in self.parts:
            found = _with(found, part, left)
            left -= len(part.leads + part.written)
            if left < 0:
                break
        calls = found.calls + (() if self.fault else self.native)
        found = evolve(found, calls=calls, begun=found.begun or self.native, reason=self.untouched().reason)
        if forbidden and (calls or found.begun):
            return evolve(found, calls=(), begun=(), discarded=_size(calls))
        return evolve(found, reason="calls") if calls and found.reason == "stop" else found


def _size(calls: Calls) -> int:
    return sum(len(name) + len(json.dumps(arguments)) for name, arguments in calls)


def _with(shown: Shown, part: Part, left: int) -> Shown:
    """Return the expected result including this part; at most `left` of its characters were sent."""
    whole = part.leads + part.written
    behind = left - len(part.leads)
    match part.kind:
        case "text" if behind > 0:
            leads = part.leads if shown.text or not shown.calls else ""
            return evolve(shown, text=shown.text + leads + part.written[:behind])
        case "thought" if behind > len(OPENER):
            inner = part.written.removeprefix(OPENER).removesuffix(CLOSER)
            return evolve(shown, reasoning=shown.reasoning + inner[: behind - len(OPENER)])
        case "calls" if left >= len(whole):
            return evolve(shown, calls=shown.calls + part.calls)
        case _:
            return evolve(shown, rest=whole[:left], begun=part.calls)


# --- random contents


def reply(chance: random.Random, *, whole: bool, calls: bool | None = None) -> Reply:
    """Return a random reply. `whole` excludes faults; `calls` requires or excludes calls (None allows both)."""
    parts: list[Part] = []
    thinks = chance.random() < 0.2
    if thinks:
        inner = chance.choice(("A thought.", "Zwei Gedanken: 😀.", "Lines\n\nof thought."))
        parts.append(Part("thought", "", OPENER + inner + CLOSER))
    calling = chance.random() < 0.5 if calls is None else calls
    if not calling or chance.random() < 0.6:
        parts.append(Part("text", "\n\n" if thinks else "", prose(chance)))
    native: Calls = ()
    if calling and chance.random() < 0.15:
        native = some_calls(chance, PROPERTIES, odd=True)
    elif calling:
        parts.append(call_part(chance, "\n\n" if parts else ""))
        if chance.random() < 0.3:
            parts.append(Part("text", "\n\n", prose(chance)))
    said = Reply(tuple(parts), chance.choice(("", "", "", "It was thought of.")), native, counted=chance.random() < 0.7)
    said = evolve(said, escaped=chance.random() < 0.5)
    deltas = tuple(deltas_of(chance, said))
    sizes = tuple(chance.choice((1, 2, 7, 50, 400)) for _ in range(5)) if chance.random() < 0.3 else ()
    pace = chance.choice((0.0, 0.0, 0.001, 0.005, 0.02)) if len(deltas) < 200 else 0.0
    said = evolve(said, deltas=deltas, sizes=sizes if len(deltas) < 200 else (), pace=pace)
    if whole or chance.random() < 0.6:
        lie = chance.choice(LIES) if chance.random() < 0.4 else ""
        cut = "length" if chance.random() < 0.05 and not lie and not calling else "stop"
        return evolve(said, lie=lie, reason=cut)
    if chance.random() < 0.3:
        return evolve(said, fault=chance.choice(REFUSALS))
    until = chance.choice((0, chance.randint(0, len(deltas)), chance.randint(0, len(deltas)), len(deltas)))
    while _halves(deltas[:until]):
        until += 1
    fault = chance.choice(BREAKS)
    return evolve(said, fault="closed" if fault == "reset" and len(deltas) > 400 else fault, until=until)


def _halves(deltas: tuple[tuple[Key, Any], ...]) -> bool:
    """Return whether the deltas end with the first half of a surrogate pair."""
    last = next((value for key, value in reversed(deltas) if key == "content" and value), "")
    return "\ud800" <= last[-1:] < "\udc00"


def saying(words: str) -> Reply:
    """Return a reply that consists of this text."""
    return Reply((Part("text", "", words),), deltas=(("content", words),))


def prose(chance: random.Random) -> str:
    """Return a few paragraphs, occasionally including a huge one."""
    if chance.random() < 0.02:
        return (PROSE[0] + " ") * (HUGE // len(PROSE[0])) + "The end."
    return "\n\n".join(chance.choices(PROSE, k=chance.randint(1, 4)))


def call_part(chance: random.Random, leads: str) -> Part:
    """Return a few calls in one of the formats."""
    form = chance.choice(LISTENED)
    odd = all(isinstance(variant.body, JsonBody | Envelope | MessageBody) for variant in FORMATS[form].variants)
    calls = some_calls(chance, PROPERTIES, odd=odd)
    escaped = chance.random() < 0.5
    made = [Call(name, json.dumps(arguments, ensure_ascii=escaped)) for name, arguments in calls]
    return Part("calls", leads, write(made, form), calls)


def some_calls(chance: random.Random, properties: dict[str, Any], *, odd: bool) -> Calls:
    """Return one to three calls."""
    found = []
    for name in chance.choices(list(properties), k=chance.choice((1, 1, 1, 2, 3))):
        keys = list(properties[name])
        found.append((name, {key: value(chance, properties[name][key]["type"], odd=odd) for key in keys}))
    return tuple(found)


def value(chance: random.Random, kind: str, *, odd: bool) -> Any:
    """Return a value of this type; `odd` means that strings in it may contain anything."""
    match kind:
        case "string":
            size = 2000 if chance.random() < 0.03 else chance.randint(0, 12)
            return "v" + "".join(chance.choices(ODD + PLAIN if odd else PLAIN, k=size)) + "v"
        case "integer":
            return chance.randrange(-1000, 10**12)
        case "number":
            return chance.choice((0.5, -1.25, 12, 1e21))
        case "boolean":
            return chance.random() < 0.5
        case "array":
            return [value(chance, "string", odd=odd) for _ in range(chance.randint(0, 3))]
        case _:
            return {"deep": {"x": None, "y": [1, {}]}, "k": value(chance, "string", odd=odd)}


def deltas_of(chance: random.Random, said: Reply) -> Iterator[tuple[Key, Any]]:
    """Yield the reply in deltas: tiny, small or large, in large numbers, or with empty deltas in between."""
    whole = "".join(part.leads + part.written for part in said.parts)
    sizes = chance.choice(((1,), (2,), (3, 4, 5), (4,), (1, 30, 200), (len(whole) or 1,)))
    if len(whole) > 20_000:
        sizes = chance.choice(((20,), (HUGE,)))
    yield from (("reasoning_content", piece) for piece in pieces(chance, said.thought, (3,), halves=False))
    empty = chance.random() < 0.3
    for piece in pieces(chance, whole, sizes, halves=said.escaped):
        if empty and chance.random() < 0.2:
            yield "content", ""
        yield "content", piece
    for index, (name, arguments) in enumerate(said.native):
        made = json.dumps(arguments, ensure_ascii=said.escaped)
        yield "tool_calls", {"index": index, "id": f"call_up{index}", "function": {"name": name, "arguments": ""}}
        for piece in pieces(chance, made, (5, 40), halves=False):
            yield "tool_calls", {"index": index, "function": {"arguments": piece}}


def pieces(chance: random.Random, text: str, sizes: tuple[int, ...], *, halves: bool) -> Iterator[str]:
    """Yield the text in pieces of these sizes; with `halves`, a character beyond U+FFFF may be split into
    surrogates.
    """
    carried, at = "", 0
    while at < len(text):
        size = chance.choice(sizes)
        piece = carried + text[at : at + size]
        at, carried = at + size, ""
        if halves and piece[-1] > "\uffff" and chance.random() < 0.5:
            pair = piece[-1].encode("utf-16-le")
            piece, carried = (
                piece[:-1] + chr(int.from_bytes(pair[:2], "little")),
                chr(int.from_bytes(pair[2:], "little")),
            )
        yield piece
    if carried:
        yield carried
