r"""The conformance cases: model text and its expected outcome. They are read from Markdown files, one per format.

A file begins with an introduction to the format. Each `##` heading begins a case, which consists of prose that explains
it and blocks between lines of tildes.

`~~~~ settings` (optional): `key: value` lines. `tools` (JSON: schemas by name, a list of names, or null; replaces
`TOOLS`), `formats` (names), `prefix` (a JSON string), `reason`, `unknown`, `in_fences`, `calls_in_reasoning`, `names`,
`flattened`, `limits` (JSON).

`~~~~ text`: the model's text, which is the lines of the block joined by newlines, without a final newline. `~~~~ text
escaped`: like `text`, with `\r`, `\n`, `\t`, `\\` and `\uXXXX` decoded.

`~~~~ events`: the expected outcome, in order, one event per line:

    text "…"  reasoning "…"  discard malformed "…"       JSON strings
    unchanged                                            all of the model's text, as text
    call NAME {…}                                        the argument text, verbatim
        id ID · incomplete · repairs A, B · format F     indented, one per line; omitted if they are the default
        arguments "…"                                    a JSON string, in place of the text after NAME

Everywhere, `«text × N»` means the text repeated N times.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import field, frozen

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "formats"
"""Folder that contains the case files."""

Json = Any
STRING = {"type": "string"}
TOOLS: Mapping[str, Json] = {
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
"""Tools for cases that do not define their own."""

BLOCKS = ("settings", "text", "text escaped", "events")


@frozen
class Case:
    """A conformance case as plain values."""

    format: str
    title: str
    line: int
    text: str
    events: list[dict[str, Json]]
    """Expected outcome: `text`, `reasoning`, `discard` or `call`, each under the `type` key."""
    tools: Json = field(factory=lambda: TOOLS)
    reason: str | None = None
    options: dict[str, Json] = field(factory=dict)
    note: str = ""
    """Prose below the case's heading."""

    @property
    def id(self) -> str:
        """Identifier that consists of the format, line and title."""
        return f"{self.format}:{self.line} {self.title}"


def all_cases(place: Path) -> list[Case]:
    """Return all cases from all files."""
    return [case for path in sorted(place.glob("*.md")) for case in read_cases(path.stem, path.read_text("utf-8"))]


def read_cases(form: str, written: str) -> Iterator[Case]:
    """Yield the cases in one file. Raises ValueError if the file is invalid."""
    title, line, opened, info = "", 0, "", ""
    lines: list[str] = []
    prose: list[str] = []
    blocks: dict[str, str] = {}
    for number, row in enumerate(written.split("\n"), 1):
        if opened:
            if row != opened:
                lines.append(row)
                continue
            if info in blocks:
                raise ValueError(f"{form}:{number}: duplicate block {info!r}")
            blocks[info], opened = "\n".join(lines), ""
        elif found := re.match(r"(~{3,})\s*(.*)", row):
            opened, info, lines = found[1], found[2], []
            if info not in BLOCKS:
                raise ValueError(f"{form}:{number}: unknown block {info!r}; use {', '.join(BLOCKS)}")
        elif row.startswith("## "):
            if title and blocks:
                yield made(form, title, line, blocks, prose)
            title, line, blocks, prose = row[3:], number, {}, []
        else:
            prose.append(row)
    if opened:
        raise ValueError(f"{form}: unclosed block")
    if title and blocks:
        yield made(form, title, line, blocks, prose)


def made(form: str, title: str, line: int, blocks: Mapping[str, str], prose: Iterable[str]) -> Case:
    """Return the case defined by these blocks and lines of prose."""
    try:
        plain = "text" in blocks
        text = repeated(blocks["text"] if plain else blocks["text escaped"])
        text = text if plain else unescaped(text)
        expected = read_events(repeated(blocks["events"]).splitlines(), form, text)
        note = "\n".join(prose).strip()
        return Case(form, title, line, text, expected, note=note, **read_settings(blocks.get("settings", "")))
    except (KeyError, ValueError) as error:
        raise ValueError(f"{form}:{line} {title}: {error}") from error


def repeated(text: str) -> str:
    """Expand each `«text × N»`."""
    return re.sub(r"«([^»]*) × (\d+)»", lambda found: found[1] * int(found[2]), text)


def unescaped(text: str) -> str:
    """Decode the escapes in the text."""
    named = {"r": "\r", "n": "\n", "t": "\t", "\\": "\\"}

    def one(found: re.Match[str]) -> str:
        return chr(int(found[1][1:], 16)) if found[1][0] == "u" else named[found[1]]

    return re.sub(r"\\(u[0-9a-fA-F]{4}|[rnt\\])", one, text)


def read_settings(block: str) -> dict[str, Json]:
    """Return the settings of a case, as keyword arguments of `Case`. Raises ValueError if a line is invalid."""
    found: dict[str, Json] = {}
    options: dict[str, Json] = {}
    for line in block.splitlines():
        key, _, value = line.partition(": ")
        match key:
            case "tools":
                found["tools"] = json.loads(value)
            case "reason":
                found["reason"] = value
            case "formats":
                options["formats"] = value.split(", ")
            case "prefix" | "limits":
                options[key] = json.loads(value)
            case "unknown" | "in_fences" | "names" | "flattened":
                options[key] = value
            case "calls_in_reasoning":
                options[key] = value == "true" if value in ("true", "false") else value.split(", ")
            case _:
                raise ValueError(f"unknown setting: {line!r}")
    return found | {"options": options}


def read_events(lines: Iterable[str], form: str, text: str) -> list[dict[str, Json]]:
    """Return the expected outcome. Raises ValueError if a line is invalid."""
    found: list[dict[str, Json]] = []
    for line in lines:
        word, _, rest = line.strip().partition(" ")
        if line.startswith(" "):
            if not found or found[-1]["type"] != "call":
                raise ValueError(f"no call above this line: {line!r}")
            found[-1].update(call_property(word, rest, line))
            continue
        match word:
            case "unchanged":
                found.append({"type": "text", "text": text})
            case "text" | "reasoning":
                found.append({"type": word, "text": json.loads(rest)})
            case "discard":
                reason, _, what = rest.partition(" ")
                found.append({"type": "discard", "reason": reason, "text": json.loads(what)})
            case "call":
                name, _, arguments = rest.partition(" ")
                found.append(
                    {
                        "type": "call",
                        "name": name,
                        "id": None,
                        "format": form,
                        "arguments": arguments,
                        "complete": True,
                        "repairs": [],
                    }
                )
            case _:
                raise ValueError(f"unknown event: {line!r}")
    return found


def call_property(word: str, rest: str, line: str) -> dict[str, Json]:
    """Return the property in an indented line below a call. Raises ValueError if the line is invalid."""
    match word:
        case "id" | "format":
            return {word: rest}
        case "incomplete":
            return {"complete": False}
        case "repairs":
            return {"repairs": rest.split(", ")}
        case "arguments":
            return {"arguments": json.loads(rest)}
        case _:
            raise ValueError(f"unknown property of a call: {line!r}")
