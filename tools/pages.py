"""Generate `llms.txt` and `AGENTS.md` from the list of pages in `docs/index.md` and from `docs/contributing.md`.

The same list is the navigation of the site (`tools/docs_site.py`).
"""

import posixpath
import re
from pathlib import Path
from typing import Final

from attrs import frozen

from tools.formats_page import item, paragraph

ROOT: Final = Path(__file__).resolve().parent.parent
LIST: Final = "## All pages"
_SECTION: Final = re.compile(r"^### (.+)$", re.MULTILINE)
_ITEM: Final = re.compile(r"^- \[(?P<title>[^]]+)\]\((?P<link>[^)]+)\): (?P<about>.+(?:\n  .+)*)", re.MULTILINE)
_LINK: Final = re.compile(r"\]\((?!https?:|#)([^)\s#]+)(#[^)\s]*)?\)")


@frozen
class Page:
    """A page: its title in lists, its file in the checkout, and a line about it."""

    title: str
    source: str
    about: str


def listed() -> dict[str, list[Page]]:
    """Return the sections of the list of pages."""
    parts = _SECTION.split(_read("docs/index.md").partition(f"\n{LIST}\n")[2])
    sections = zip(parts[1::2], parts[2::2], strict=True)
    return {title: [_page(found) for found in _ITEM.finditer(text)] for title, text in sections}


def llms_text() -> str:
    """Return `llms.txt`: each page with a line about it."""
    sections = (
        f"## {title}\n\n" + "\n".join(f"- [{page.title}]({page.source}): {page.about}" for page in pages)
        for title, pages in listed().items()
    )
    return "\n\n".join((f"# streamtool\n\n> {_introduction()}", *sections)) + "\n"


def agents_page() -> str:
    """Return `AGENTS.md`: how to use streamtool, and how to change it."""
    index, rules = _read("docs/index.md"), _read("docs/contributing.md")
    commands = re.search(r"```sh\n.*?```", rules, re.DOTALL)
    cards = re.search(r'<div class="grid cards" markdown>\n\n(.*?)\n\n</div>', index, re.DOTALL)
    if commands is None or cards is None:
        raise ValueError("the commands or the cards are missing")
    ways = re.findall(r"^- \*\*(.+)\*\*\n\n {4}((?:.+\n? *)+)", cards[1], re.MULTILINE)
    used = "\n".join(item(f"{title}: {_led(text, 'docs')}") for title, text in ways)
    kept = (f"## {title}\n\n{_led(_section(rules, title), 'docs')}" for title in ("Tests", "Commits", "Docs"))
    kept_text = "\n\n".join(kept)
    return f"""\
<!-- made from docs/index.md and docs/contributing.md by `python tests/test_docs.py`; a test keeps it current -->

# streamtool for coding agents

{paragraph(_introduction())}
[llms.txt](llms.txt) lists all pages with a line about each.

## Use it

{used}

## Change it

Set up and test; `.ci/run` runs every required check:

{commands[0]}

[docs/design.md](docs/design.md) explains how it works, and
[a table](docs/contributing.md#where-code-belongs) lists the file for each kind of change.

{kept_text}
"""


def _page(found: re.Match[str]) -> Page:
    source = posixpath.normpath(posixpath.join("docs", found["link"].partition("#")[0]))
    return Page(found["title"], source, " ".join(found["about"].split()))


def _introduction() -> str:
    """Return the first paragraph of `docs/index.md`."""
    return " ".join(_read("docs/index.md").split("\n\n")[1].split())


def _section(text: str, title: str) -> str:
    return re.split(r"^## ", text.partition(f"\n## {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0].strip()


def _led(text: str, folder: str) -> str:
    """Return text from a file in this folder with links that work in the root."""
    return _LINK.sub(lambda link: f"]({posixpath.normpath(posixpath.join(folder, link[1]))}{link[2] or ''})", text)


def _read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")
