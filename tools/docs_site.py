"""Hooks for `mkdocs build`: add pages from outside docs/ and an API reference to the site.

The pages are written for a checkout, where links lead to files. On the site, these links are rewritten to lead to its
own pages and files.
"""

import posixpath
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File, Files

import streamtool

ROOT: Final = Path(__file__).resolve().parent.parent
PAGES: Final = {
    "README.md": "from/readme.md",
    "CHANGELOG.md": "from/changelog.md",
    "conformance/README.md": "from/conformance.md",
}
"""Pages outside docs/ → their paths on the site."""
API: Final = {
    "parser": ("The parser", ["Parser", "parse", "write", "Call", "tools_of", "TextDelta", "ReasoningDelta",
                              "CallStart", "ArgumentsDelta", "CallEnd", "Discarded", "Limits"]),
    "streamtool": ("Drivers", ["ToolMiddleware", "Proxy", "wrap", "ToolTransport", "SyncToolTransport", "Record"]),
    "agent": ("The agent", ["Agent", "McpServer"]),
    "settings": ("Settings", ["Settings", "LimitSettings"]),
    "errors": ("Errors", ["StreamtoolError", "SettingsError", "RequestError", "AgentError", "UpstreamError"]),
    "testing": ("Testing", ["streamtool.testing"]),
}  # fmt: skip
"""Pages of the API reference: a title, and public names or a module."""
STYLE: Final = """
.md-typeset table:not([class]) { font-size: .68rem; } .md-typeset img[src$=".svg"] { width: 100%; max-width: 46rem; }
.filter { width: 100%; max-width: 30rem; padding: .4rem .7rem; margin: .6rem 0; font: inherit; color: inherit;
  background: transparent; border: 1px solid var(--md-default-fg-color--lighter); border-radius: .2rem; }
"""
SCRIPT: Final = """
// Adds a filter to long tables: formats, reports, settings.
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll(".md-typeset table:not([class])")) {
    const rows = [...table.tBodies[0].rows];
    if (rows.length < 12) continue;
    const field = document.createElement("input");
    field.type = "search";
    field.className = "filter";
    field.placeholder = `Filter these ${rows.length} rows`;
    field.setAttribute("aria-label", field.placeholder);
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\\s+/).filter(Boolean);
      for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    });
    (table.closest(".md-typeset__scrollwrap") ?? table).before(field);
  }
});
"""
_LINK: Final = re.compile(r"(?<!\\)\]\((?!https?:|#|mailto:)([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the files that are not in docs/."""
    for source, place in PAGES.items():
        files.append(File.generated(config, place, content=(ROOT / source).read_text(encoding="utf-8")))
    for name, (title, members) in API.items():
        files.append(File.generated(config, f"api/{name}.md", content=_api(title, members)))
    files.append(File.generated(config, "site.css", content=STYLE))
    files.append(File.generated(config, "site.js", content=SCRIPT))
    for source in sorted(_linked()):
        files.append(File.generated(config, f"from/{source}", content=(ROOT / source).read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite links so that they lead to the site's copies of their targets."""
    place = page.file.src_uri
    source = next((source for source, there in PAGES.items() if there == place), f"docs/{place}")

    def led(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[1]))
        there = _place(target)
        return f"]({posixpath.relpath(there, posixpath.dirname(place) or '.')}{link[2] or ''})"

    return _LINK.sub(led, markdown)


def _place(target: str) -> str:
    """Return the path on the site for a file in the checkout."""
    if target in PAGES:
        return PAGES[target]
    return target.removeprefix("docs/") if target.startswith("docs/") else f"from/{target}"


def _linked() -> set[str]:
    """Return the files outside docs/ that pages link to, except files that are themselves pages of the site."""
    found = set()
    for page in [*(ROOT / "docs").rglob("*.md"), *(ROOT / source for source in PAGES)]:
        for link in _LINK.finditer(page.read_text(encoding="utf-8")):
            file = (page.parent / link[1]).resolve()
            target = file.relative_to(ROOT).as_posix()
            if not target.startswith("docs/") and target not in PAGES and file.is_file():
                found.add(target)
    return found


def _api(title: str, members: list[str]) -> str:
    """Return a page of the API reference."""
    parts = [f"# {title}\n"]
    for name in members:
        home = streamtool.HOMES.get(name)
        parts.append(f"::: {name if home is None else f'{home}.{name}'}\n")
    return "\n".join(parts)
