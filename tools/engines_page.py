"""Generate the table of servers in `docs/proxy.md` from `streamtool/models/engines.py`."""

import json
from pathlib import Path

from streamtool.models.engines import ENGINES, Engine

PAGE = Path(__file__).resolve().parent.parent / "docs" / "proxy.md"
BEGIN = "<!-- made from the table of servers -->\n"
END = "<!-- end -->"


def table() -> str:
    """Return the table."""
    rows = [f"| {row.name} | {_questions(row)} | {_changes(row)} |\n" for row in ENGINES if row.signs]
    return "| server | recognized by | changes |\n|---|---|---|\n" + "".join(rows).replace("|  |", "| |")


def _questions(row: Engine) -> str:
    return ", ".join(dict.fromkeys(f"`{sign.path}`" for sign in row.signs))


def _changes(row: Engine) -> str:
    changes = [f"protocol `{row.protocol}`"] if row.protocol != "chat" else []
    if row.grows:
        changes.append("`num_ctx` as needed")
    elif row.windows:
        changes.append("window: " + ", ".join(f"`{one.path}`" for one in row.windows))
    if row.forcing != "auto":
        changes.append(f"forcing `{row.forcing}`")
    changes += [f"forcing `{method}` over `{protocol}`" for protocol, method in row.forcing_over.items()]
    changes += [f"`{name}: {json.dumps(value)}`" for name, value in row.special_tokens.items()]
    if row.truncates:
        changes.append("may cut prompts")
    return ", ".join(changes)


def page() -> str:
    """Return the page with its table up to date."""
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    if not begin:
        raise ValueError(f"{PAGE.name} has no comment that marks the table of servers")
    return before + begin + "\n" + table() + "\n" + END + rest.partition(END)[2]
