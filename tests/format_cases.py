"""Reads the conformance cases of `tests/formats/*.md`.

A file is one format. Its introduction says what the format is; then a case per `##` heading: prose that says why, and
blocks between lines of tildes.

`~~~~ settings` (optional): `key: value` lines. `tools` (JSON: schema by name, a list of names, or null; replaces `TOOLS`),
    `formats` (names), `prefix` (a JSON string), `reason`, `unknown`, `in_fences`, `calls_in_reasoning`, `limits` (JSON).
`~~~~ text`: what the model wrote: the lines of the block joined by newlines, none at the end. `~~~~ text escaped`: the
    same, with `\\r`, `\\n`, `\\t`, `\\\\` and `\\uXXXX` decoded.
`~~~~ events`: the expected outcome, in order, a line each:

    text "…"  reasoning "…"  discard malformed "…"       JSON strings
    unchanged                                            all of the model's text, as text
    call NAME {…}                                        the argument text as it stands
        id ID · incomplete · repairs A, B · format F     indented, each on a line of its own, where it is not the default
        arguments "…"                                    instead of the rest of the first line: a JSON string

Everywhere `«text × N»` stands for N times the text.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen
from statemachine_fold import Discard, FoldedCall, Item, Reasoning, Text

from statemachine import Limits

FOLDER = Path(__file__).parent / "formats"

STRING = {"type": "string"}
TOOLS: dict[str, Any] = {
    "get_weather": {
        "type": "object",
        "properties": {"city": STRING, "days": {"type": "integer"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
        "required": ["city"],
    },
    "write_file": {"type": "object", "properties": {"path": STRING, "content": STRING}},
    "everything": {
        "type": "object",
        "properties": {
            "text": STRING,
            "number": {"type": "number"},
            "integer": {"type": "integer"},
            "flag": {"type": "boolean"},
            "nothing": {"type": "null"},
            "list": {"type": "array"},
            "object": {"type": "object"},
            "either": {"type": ["string", "integer"]},
            "any": {},
        },
    },
    "ping": {"type": "object", "properties": {}},
    "ping_all": {"type": "object", "properties": {}},
    "anything": {},
}
"""The tools that a case offers when it does not say otherwise."""


@frozen
class Case:
    """One case."""

    format: str
    title: str
    line: int
    text: str
    expected: list[Item]
    tools: Any = field(factory=lambda: TOOLS)
    reason: str | None = None
    options: dict[str, Any] = field(factory=dict)

    @property
    def id(self) -> str:
        """Format, line and title, for the test's name."""
        return f"{self.format}:{self.line} {self.title}"


def repeated(text: str) -> str:
    """The text with each `«text × N»` written out."""
    return re.sub(r"«([^»]*) × (\d+)»", lambda found: found[1] * int(found[2]), text)


def unescaped(text: str) -> str:
    """The text with its escapes decoded."""
    named = {"r": "\r", "n": "\n", "t": "\t", "\\": "\\"}

    def one(found: re.Match[str]) -> str:
        return chr(int(found[1][1:], 16)) if found[1][0] == "u" else named[found[1]]

    return re.sub(r"\\(u[0-9a-fA-F]{4}|[rnt\\])", one, text)


def settings(block: str) -> dict[str, Any]:
    """The settings of a case, as keyword arguments of `Case`."""
    found: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for line in block.splitlines():
        key, _, value = line.partition(": ")
        match key:
            case "tools":
                found["tools"] = json.loads(value)
            case "reason":
                found["reason"] = value
            case "formats":
                options["formats"] = value.split(", ")
            case "prefix":
                options["prefix"] = json.loads(value)
            case "unknown" | "in_fences":
                options[key] = value
            case "calls_in_reasoning":
                options[key] = value == "true"
            case "limits":
                options[key] = Limits(**json.loads(value))
            case _:
                raise ValueError(f"no such setting: {line!r}")
    return found | {"options": options}


def events(block: str, form: str, text: str) -> list[Item]:
    """The expected outcome."""
    items: list[Item] = []
    for line in repeated(block).splitlines():
        word, _, rest = line.strip().partition(" ")
        if line.startswith(" "):
            call = items[-1]
            assert isinstance(call, FoldedCall), f"this belongs to a call: {line!r}"
            match word:
                case "id":
                    items[-1] = evolve(call, id=rest)
                case "incomplete":
                    items[-1] = evolve(call, complete=False)
                case "repairs":
                    items[-1] = evolve(call, repairs=tuple(rest.split(", ")))
                case "format":
                    items[-1] = evolve(call, format=rest)
                case "arguments":
                    items[-1] = evolve(call, arguments=json.loads(rest))
                case _:
                    raise ValueError(f"no such property of a call: {line!r}")
            continue
        match word:
            case "unchanged":
                items.append(Text(text))
            case "text":
                items.append(Text(json.loads(rest)))
            case "reasoning":
                items.append(Reasoning(json.loads(rest)))
            case "discard":
                reason, _, what = rest.partition(" ")
                items.append(Discard(json.loads(what), reason))
            case "call":
                name, _, arguments = rest.partition(" ")
                items.append(FoldedCall(name, None, form, arguments, complete=True))
            case _:
                raise ValueError(f"no such event: {line!r}")
    return items


def cases_of(path: Path) -> Iterator[Case]:
    """The cases of one file."""
    title, line, opened, info = "", 0, "", ""
    lines: list[str] = []
    blocks: dict[str, str] = {}

    def done() -> Iterator[Case]:
        if not title or not blocks:
            return
        plain = "text" in blocks
        text = repeated(blocks["text"] if plain else blocks["text escaped"])
        text = text if plain else unescaped(text)
        expected = events(blocks["events"], path.stem, text)
        yield Case(path.stem, title, line, text, expected, **settings(blocks.get("settings", "")))

    for number, row in enumerate(path.read_text("utf-8").split("\n"), 1):
        if opened:
            if row == opened:
                assert info not in blocks, f"{path.name}:{number}: a second block {info!r}"
                blocks[info], opened = "\n".join(lines), ""
            else:
                lines.append(row)
        elif found := re.match(r"(~{3,})\s*(.*)", row):
            opened, info, lines = found[1], found[2], []
            assert info in ("settings", "text", "text escaped", "events"), f"{path.name}:{number}: {info!r}"
        elif row.startswith("## "):
            yield from done()
            title, line, blocks = row[3:], number, {}
    assert not opened, f"{path.name}: a block is not closed"
    yield from done()


def all_cases() -> list[Case]:
    """Every case of every file."""
    return [case for path in sorted(FOLDER.glob("*.md")) for case in cases_of(path)]
