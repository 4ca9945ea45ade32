"""Generate `docs/recipes.md`: the handwritten text in `tools/recipes.md`, and the recipes of `streamtool recipe`."""

import re
from collections.abc import Mapping
from pathlib import Path

from streamtool.cli.recipe import CONTEXT, Client, Server, block, filled, find, recipes, serve_command
from tools.formats_page import paragraph

TEXT = Path(__file__).resolve().parent / "recipes.md"
VERSIONS = {
    "Claude Code": "2.1.197",
    "Codex": "0.169.0",
    "opencode": "1.18.33",
    "Cline": "3.0.65",
    "Qwen Code": "0.15.10",
    "Continue": "1.5.47",
    "Gemini CLI": "0.61.0",
}
"""Versions of the agents that `tests/clients/test_agents_installed.py` ran."""
EXAMPLE = "Claude Code"
"""The client whose steps the example at the beginning of the page shows."""
MODEL = "qwen3-coder"


def page() -> str:
    """Return the content of `docs/recipes.md`."""
    known = recipes()
    values = {
        "CLIENT_NAMES": ", ".join(client.name for client in known.clients.values()),
        "SERVER_NAMES": ", ".join(server.name for server in known.servers.values()),
        "EXAMPLE": block(find(EXAMPLE, known.clients, "client"), known.servers["llama.cpp"], MODEL),
        "VERSIONS": ", ".join(f"{name} ({version})" for name, version in VERSIONS.items()),
        "SERVERS": "\n".join(map(_row, known.servers.values())),
        "SERVER_NOTES": "\n\n".join(f"### {row.name}\n\n{row.notes}" for row in known.servers.values() if row.notes),
        "CLIENTS": "\n\n".join(map(_section, known.clients.values())),
    }
    parts = TEXT.read_text(encoding="utf-8").split("\n\n")
    text = "\n\n".join(_replaced(part, values) for part in parts)
    return f"<!-- made by tools/recipes_page.py: run `python tests/test_docs.py` -->\n\n{text}"


def _replaced(part: str, values: Mapping[str, str]) -> str:
    """Return a paragraph or block with its placeholders replaced, and wrapped if names were inserted."""
    text = part
    for name, value in values.items():
        text = text.replace(f"${name}$", value)
    return paragraph(text).strip() if text != part and re.search(r"\$(\w+_NAMES|VERSIONS)\$", part) else text


def _row(server: Server) -> str:
    """Return a server's row of the table."""
    start = "<br>".join(f"`{filled(line, server.model, CONTEXT)}`" for line in server.start.splitlines())
    return f"| {server.name} | {start} | `{filled(serve_command(server), server.model, CONTEXT)}` |"


def _section(client: Client) -> str:
    """Return the section about a client."""
    parts = [f"## {client.name}"]
    for step in client.steps if client.name != EXAMPLE else ():
        if step.file:
            note = f" ({step.note})" if step.note else ""
            parts.append(f"`{step.file}`{note}:\n\n<!-- not run: the settings of another program -->")
        text = filled(step.text, MODEL, CONTEXT)
        fence = f"```{step.language}\n{text}\n```"
        parts[-1] += f"\n{fence}" if step.file else f"\n\n{fence}"
    return "\n\n".join([*parts, *([client.notes] if client.notes else [])])
