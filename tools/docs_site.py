"""`python -m tools.docs_site [FOLDER]`: build the site in FOLDER/site (default: build), strictly.

The pages are written for a checkout, where links lead to files. They are copied to FOLDER/docs, together with pages
from outside docs/ and an API reference, and their links are rewritten to lead to the site's own pages and files. The
list of pages in docs/index.md is the navigation. The site also serves each page as Markdown, and llms.txt, which lists
the pages.
"""

import json
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import streamtool
from streamtool.cli import recipe
from tools.pages import listed

ROOT: Final = Path(__file__).resolve().parent.parent
CONFIG: Final = ROOT / "tools" / "docs_site.toml"
PAGES: Final = {
    "README.md": "from/readme.md",
    "CHANGELOG.md": "from/changelog.md",
    "conformance/README.md": "from/conformance.md",
}
"""Pages outside docs/ → their paths on the site."""
API: Final = {
    "parser": ("The parser", ["Parser", "parse", "write", "Call", "tools_of", "TextDelta", "ReasoningDelta",
                              "CallStart", "ArgumentsDelta", "CallEnd", "Discarded", "Limits"]),
    "streamtool": ("Middleware, proxy and clients", ["ToolMiddleware", "Proxy", "wrap", "ToolTransport",
                                                     "SyncToolTransport", "Record"]),
    "agent": ("The agent", ["Agent", "McpServer"]),
    "settings": ("Settings", ["Settings", "LimitSettings"]),
    "errors": ("Errors", ["StreamtoolError", "SettingsError", "RequestError", "AgentError", "UpstreamError"]),
    "testing": ("Testing", ["streamtool.testing"]),
}  # fmt: skip
"""Pages of the API reference: a title, and public names or a module."""
STYLE: Final = """
.md-typeset table:not([class]) { font-size: .68rem; } .md-typeset img[src$=".svg"] { width: 100%; max-width: 46rem; }
.md-typeset img[src$="deltas.svg"] { max-width: 20rem; }
.filter { width: 100%; max-width: 30rem; padding: .4rem .7rem; margin: .6rem 0; font: inherit; color: inherit;
  background: transparent; border: 1px solid var(--md-default-fg-color--lighter); border-radius: .2rem; }
.recipe label { display: inline-block; margin: 0 .8rem .4rem 0; }
.recipe select, .recipe input { padding: .2rem .4rem; font: inherit; color: inherit; background: transparent;
  border: 1px solid var(--md-default-fg-color--lighter); border-radius: .2rem; }
.recipe option { color: initial; }
.recipe pre { padding: .8em 1.2em; overflow: auto; font-size: .85em; background: var(--md-code-bg-color); }
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
// Shows the steps for a client and a server, which the page's form selects.
document.addEventListener("DOMContentLoaded", () => {
  const form = document.querySelector("form.recipe");
  if (!form) return;
  const { clients, servers } = JSON.parse(form.querySelector("script").textContent);
  const { client, server, model, context } = form.elements;
  const shown = form.querySelector("pre");
  for (const [field, rows] of [[client, clients], [server, servers]]) {
    for (const name of Object.keys(rows)) field.add(new Option(name));
  }
  const show = () => {
    const name = model.validity.valid && model.value ? model.value : servers[server.value].model;
    const size = context.validity.valid && context.value ? context.value : context.placeholder;
    model.placeholder = servers[server.value].model;
    shown.textContent = `${servers[server.value].steps}\n\n${clients[client.value]}`
      .replaceAll("$model", () => name).replaceAll("$context", () => size);
  };
  form.addEventListener("input", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.querySelector("button").addEventListener("click", () => navigator.clipboard.writeText(shown.textContent));
  show();
  form.hidden = false;
  form.nextElementSibling.hidden = true; // the example
});
"""
GENERATOR: Final = """
<form class="recipe" hidden>
<label>Client <select name="client"></select></label>
<label>Server <select name="server"></select></label>
<label>Model <input name="model" pattern="{pattern}"></label>
<label>Context <input name="context" type="number" min="1" placeholder="{context}"></label>
<button type="button" class="md-button">Copy</button>
<pre></pre>
<script type="application/json">{data}</script>
</form>
"""
"""Form for `<!-- generator -->`. The script shows it and hides the example after it."""
_LINK: Final = re.compile(r"(?<!\\)\]\((?!https?:|#|mailto:)([^)\s#]+)(#[^)\s]*)?\)")


def stage(folder: Path) -> None:
    """Write the site's pages, files and settings."""
    docs = folder / "docs"
    shutil.rmtree(docs, ignore_errors=True)
    files: dict[str, bytes] = {"site.css": STYLE.encode(), "site.js": SCRIPT.encode()}
    for path in (ROOT / "docs").rglob("*"):
        if path.is_file():
            files[path.relative_to(ROOT / "docs").as_posix()] = path.read_bytes()
    for source, place in PAGES.items():
        files[place] = (ROOT / source).read_bytes()
    for source in _linked():
        files[f"from/{source}"] = (ROOT / source).read_bytes()
    for name, (title, members) in API.items():
        files[f"api/{name}.md"] = _api(title, members).encode()
    for place, content in files.items():
        file = docs / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(_page(content.decode(), place).encode() if file.suffix == ".md" else content)
    navigation = f"[project]\nnav = {_toml(_navigation())}\n"
    settings = CONFIG.read_text(encoding="utf-8").replace("[project]\n", navigation, 1)
    (folder / "zensical.toml").write_text(settings, encoding="utf-8")


def build(folder: Path) -> Path:
    """Build the site and return its folder. Exits if a link is broken."""
    stage(folder)
    shutil.rmtree(folder / "site", ignore_errors=True)
    flags = ["--clean", "--strict", "--config-file", str(folder / "zensical.toml")]
    done = subprocess.run([sys.executable, "-m", "zensical", "build", *flags], cwd=ROOT, check=False)  # noqa: S603
    if done.returncode:
        sys.exit(done.returncode)
    form = _generator()
    for page in (folder / "docs").rglob("*.md"):
        text = page.read_text(encoding="utf-8").replace(form, "")
        (folder / "site" / page.relative_to(folder / "docs")).write_text(text, encoding="utf-8")
    lists = _rewritten((ROOT / "llms.txt").read_text(encoding="utf-8"), "llms.txt", "llms.txt")
    (folder / "site" / "llms.txt").write_text(lists, encoding="utf-8")
    return folder / "site"


def _navigation() -> list[dict[str, object]]:
    """Return the navigation: the sections of the list of pages, and the API reference in the one about settings."""
    found: list[dict[str, object]] = [{"Home": "index.md"}]
    for section, pages in listed().items():
        entries: list[dict[str, object]] = [{page.title: _place(page.source)} for page in pages]
        if any("settings.md" in entry.values() for entry in entries):
            entries.append({"API": [f"api/{name}.md" for name in API]})
        found.append({section: entries})
    return found


def _toml(value: object) -> str:
    """Return a value as TOML."""
    match value:
        case dict():
            return f"{{ {', '.join(f'{json.dumps(name)} = {_toml(one)}' for name, one in value.items())} }}"
        case list():
            return f"[{', '.join(map(_toml, value))}]"
        case _:
            return json.dumps(value)


def _page(markdown: str, place: str) -> str:
    """Return a page for the site: its links lead to the site's pages, and the form is where it belongs."""
    source = next((source for source, there in PAGES.items() if there == place), None)
    if source is None:
        source = place.removeprefix("from/") if place.startswith("from/") else f"docs/{place}"
    return _rewritten(markdown, source, place).replace("<!-- generator -->", _generator())


def _rewritten(markdown: str, source: str, place: str) -> str:
    """Return Markdown from the file `source` in the checkout with links that work at `place` on the site."""

    def led(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[1]))
        there = _place(target)
        return f"]({posixpath.relpath(there, posixpath.dirname(place) or '.')}{link[2] or ''})"

    return _LINK.sub(led, markdown)


def _generator() -> str:
    """Return the form that shows the steps for a client and a server."""
    known = recipe.recipes()
    data = {
        "clients": {row.name: recipe.client_steps(row) for row in known.clients.values()},
        "servers": {
            row.name: {"model": row.model, "steps": recipe.server_steps(row)} for row in known.servers.values()
        },
    }
    values = {
        "pattern": recipe.MODEL.pattern,
        "context": recipe.CONTEXT,
        "data": json.dumps(data).replace("<", "\\u003c"),
    }
    return GENERATOR.format(**values)


def _place(target: str) -> str:
    """Return the path on the site for a file in the checkout."""
    if target in PAGES:
        return PAGES[target]
    return target.removeprefix("docs/") if target.startswith("docs/") else f"from/{target}"


def _linked() -> Iterator[str]:
    """Return the files outside docs/ that pages link to, except files that are themselves pages of the site."""
    for page in [*(ROOT / "docs").rglob("*.md"), *(ROOT / source for source in PAGES)]:
        for link in _LINK.finditer(page.read_text(encoding="utf-8")):
            file = (page.parent / link[1]).resolve()
            target = file.relative_to(ROOT).as_posix()
            if not target.startswith("docs/") and target not in PAGES and file.is_file():
                yield target


def _api(title: str, members: list[str]) -> str:
    """Return a page of the API reference."""
    parts = [f"# {title}\n"]
    for name in members:
        home = streamtool.HOMES.get(name)
        parts.append(f"::: {name if home is None else f'{home}.{name}'}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    print(build(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "build"))
