"""Print how many denials of what an offered tool does are found, by language: `python -m tools.refusals`.

`tests/refusals/denials.jsonl` contains denials and `answers.jsonl` answers that resemble them, each with the key of the
tools in `tools.json` that its request offers. The phrases were written with one half of the texts in view, the tuning
half; the other half is used only for measuring. `second` marks texts that were written, in other words and for other
tools, after the phrases. The texts in `varied_denials.jsonl` and `varied_answers.jsonl` are by an author who did not
know the phrases and was asked to vary the wording as widely as possible.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

from attrs import frozen

from streamtool.core.conversation import Conversation, Message, Tool
from streamtool.core.json_value import Json
from streamtool.forcing.rules import RefusalRules, rules_for
from streamtool.refusals import OpeningWatch
from streamtool.settings import Settings

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "refusals"
HALVES = ("tuning", "measuring")
Kind = Literal["denials", "answers"]
VARIED = "varied"
KINDS: tuple[Kind, ...] = ("denials", "answers")


@frozen
class Reply:
    """A text of the corpus."""

    text: str
    language: str
    tools: str
    """The key of the offered tools."""
    second: bool = False
    """Whether the text was written after the phrases."""

    @property
    def half(self) -> str:
        """The half that the text belongs to."""
        return HALVES[hashlib.sha256(self.text.encode()).digest()[0] % 2]


@cache
def replies(kind: Kind) -> tuple[Reply, ...]:
    """Return all texts of one kind."""
    return _read(kind)


@cache
def varied(kind: Kind) -> tuple[Reply, ...]:
    """Return the texts of one kind that were written without knowledge of the phrases."""
    return _read(f"varied_{kind}")


def _read(name: str) -> tuple[Reply, ...]:
    lines = (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(Reply(**json.loads(line)) for line in lines)


@cache
def offered() -> Mapping[str, Sequence[Tool]]:
    """Return the tools by key."""
    tree = json.loads((FOLDER / "tools.json").read_text(encoding="utf-8"))
    return {key: tuple(map(_tool, tools)) for key, tools in tree.items()}


def _tool(row: Mapping[str, Any]) -> Tool:
    properties: dict[str, Json] = {key: {} for key in row["parameters"]}
    return Tool(row["name"], row["description"], {"type": "object", "properties": properties})


@cache
def rules(key: str) -> RefusalRules:
    """Return the rules for a request that offers the tools with this key."""
    conversation = Conversation("chat", "m", (Message("user"),), tools=tuple(offered()[key]))
    return rules_for(conversation, Settings()).refusals


def watch(key: str) -> OpeningWatch:
    """Return a watch for a reply to such a request."""
    found = rules(key)
    return OpeningWatch(found.phrases, found.topics, environment=found.environment)


def denies(reply: Reply) -> bool:
    """Return whether a text is found to be a denial."""
    opening = watch(reply.tools)
    opening.feed(reply.text)
    opening.close()
    return opening.found is not None


@cache
def count() -> Mapping[tuple[str, str, str], tuple[int, int]]:
    """Return the numbers of texts that are found to be denials, and of all texts, by half, kind and language."""
    found: Counter[tuple[str, str, str]] = Counter()
    total: Counter[tuple[str, str, str]] = Counter()
    for kind in KINDS:
        for reply in (*replies(kind), *varied(kind)):
            denied = denies(reply)
            halves = (reply.half, f"{reply.half}, second" if reply.second else "")
            for half in (VARIED,) if reply in varied(kind) else halves:
                for language in (reply.language, "all"):
                    total[half, kind, language] += 1
                    found[half, kind, language] += denied
    return {key: (found[key], total[key]) for key in total if key[0]}


def rows() -> Iterator[str]:
    """Yield the lines of the table."""
    counts = count()
    languages = [*dict.fromkeys(reply.language for reply in replies("denials")), "all"]
    yield f"{'':<20} {'language':<9} {'denials found':>15} {'false alarms':>15}"
    for half in (*HALVES, *(f"{half}, second" for half in HALVES), VARIED):
        for language in languages:
            figures = (counts.get((half, kind, language), (0, 0)) for kind in KINDS)
            yield f"{half:<20} {language:<9} " + " ".join(f"{f'{found} of {total}':>15}" for found, total in figures)


if __name__ == "__main__":
    print("\n".join(rows()))
