"""Generate `docs/reference/promises.md`: what `docs/security.md` and `docs/operating.md` promise, and the tests of it.

The promises are in `tools/promises.toml`. Each names the sentences that make it, by their page and first words. A
sentence of a page that makes no promise is listed under `nothing`, so a new sentence cannot be forgotten.

    python -m tools.promises_page       print the sentences that are in neither list
"""

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from attrs import frozen

ROOT: Final = Path(__file__).resolve().parent.parent
FILE: Final = ROOT / "tools" / "promises.toml"
PAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "security.md": (),
    "operating.md": (),
    "proxy.md": ("Reloading", "Stopping"),
}
"""Page → its headings whose sections are read; an empty tuple means all of them."""
BEFORE: Final = """\
<!-- made from `tools/promises.toml` by `tools/promises_page.py`; a test keeps it current -->

# Promises

The $COUNT$ promises of three pages, and the tests that fail if a promise is broken. Each promise links to its section.
"""
_FENCE: Final = re.compile(r"^(```+).*?^\1$", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_RULE: Final = re.compile(r"\|[-|]+\|")
_END: Final = re.compile(r"(?<=[.?!])\)? (?=[A-Z`(*\[])")
"""The end of a sentence."""


@frozen
class Sentence:
    """A sentence or a table row of a page, as plain text."""

    page: str
    heading: str
    text: str


@frozen
class Promise:
    """A promise in one sentence, the first sentence that makes it, and the tests that fail if it is broken."""

    text: str
    made: Sentence
    tests: tuple[str, ...]


def sentences(page: str) -> list[Sentence]:
    """Return the sentences of a page, in order. A list item or a paragraph has several; a row of a table is one."""
    wanted = PAGES[page]
    found = []
    heading = ""
    for block in _blocks(_FENCE.sub("", (ROOT / "docs" / page).read_text(encoding="utf-8"))):
        if block.startswith("#"):
            heading = block.lstrip("# ")
        elif not wanted or heading in wanted:
            parts = [block] if block.startswith("|") else _END.split(block.removeprefix("- "))
            found += [Sentence(page, heading, _plain(part)) for part in parts]
    return found


def _blocks(text: str) -> Iterator[str]:
    """Yield the headings, paragraphs, list items and table rows of a page, each on one line."""
    for block in re.split(r"\n{2,}", text.strip()):
        rows = block.split("\n")
        if len(rows) > 1 and _RULE.fullmatch(rows[1]):
            yield from rows[2:]
        else:
            for item in re.split(r"\n(?=- )", block):
                yield " ".join(item.split())


def _plain(text: str) -> str:
    """Return text without its links, code marks and emphasis."""
    return re.sub(r"[`*]", "", _LINK.sub(r"\1", text)).strip("| ")


def promises() -> list[Promise]:
    """Return the promises, in the order of the sentences that make them.

    Raises ValueError if the sentences of a promise cannot be found.
    """
    order = [sentence for page in PAGES for sentence in sentences(page)]
    found = [
        Promise(one["promise"], _made(one["made"])[0], tuple(one["tests"]))
        for one in tomllib.loads(FILE.read_text(encoding="utf-8"))["promises"]
    ]
    return sorted(found, key=lambda one: order.index(one.made))


def without_promise() -> list[Sentence]:
    """Return the sentences that are neither made into a promise nor listed as promising nothing."""
    table = tomllib.loads(FILE.read_text(encoding="utf-8"))
    known = {sentence for one in table["promises"] for sentence in _made(one["made"])}
    known.update(_made(table["nothing"]))
    return [sentence for page in PAGES for sentence in sentences(page) if sentence not in known]


def _made(places: Mapping[str, list[str]]) -> list[Sentence]:
    """Return the sentences with these first words. Raises ValueError unless each occurs exactly once on its page."""
    found = []
    for page, begins in places.items():
        for begin in begins:
            fits = [sentence for sentence in _read(page) if sentence.text.startswith(begin)]
            if begin.startswith("# "):
                fits = [sentence for sentence in _read(page) if sentence.heading == begin[2:]]
            elif len(fits) != 1:
                raise ValueError(f"{FILE.name}: {len(fits)} sentences of {page} begin with {begin!r}")
            found += fits
    return found


_read = cache(sentences)


def tests() -> set[str]:
    """Return the names of all tests, as `file::name` or `file::class::name`."""
    return {name for path in (ROOT / "tests").rglob("test_*.py") for name in tests_of(path)}


def tests_of(path: Path) -> Iterator[str]:
    """Yield the names of the tests in a file, as `file::name` or `file::class::name`."""
    for name in _names(ast.parse(path.read_text(encoding="utf-8")).body):
        yield f"{path.relative_to(ROOT).as_posix()}::{name}"


def _names(body: Iterable[ast.stmt]) -> Iterator[str]:
    """Yield the names of the tests in a module or class, as `name` or `class::name`."""
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name.startswith("test_"):
                yield name
            case ast.ClassDef(name=name):
                yield from (f"{name}::{test}" for test in _names(node.body))


def page() -> str:
    """Return the content of `docs/reference/promises.md`."""
    found = promises()
    out = BEFORE.replace("$COUNT$", str(len(found)))
    for name in PAGES:
        out += f"\n## {name}\n\n|promise|tests|\n|---|---|\n"
        for one in (one for one in found if one.made.page == name):
            shown = "<br>".join(f"`{test}`" for test in one.tests)
            out += f"|[{one.text}](../{name}#{_anchor(one.made.heading)})|{shown}|\n"
    return out


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


if __name__ == "__main__":
    for sentence in without_promise():
        print(f"{sentence.page}: {sentence.heading}: {sentence.text}")
