"""Hooks for `mkdocs build`: add pages from outside docs/ and an API reference to the site.

The pages are written for a checkout, where links lead to files. On the site, these links are rewritten to lead to its
own pages and files.
"""

import json
import posixpath
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File, Files

import streamtool
from streamtool.cli import recipe

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
"""Form for `<!-- generator -->` on the page of recipes. The script shows it and hides the example after it."""
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


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Add the form to the page of recipes."""
    return html.replace("<!-- generator -->", _generator()) if page.file.src_uri == "recipes.md" else html


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
