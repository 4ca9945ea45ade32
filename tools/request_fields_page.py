"""Makes `docs/request-fields.md` from the tables of fields."""

from collections.abc import Mapping

from streamtool.protocols.chat import request_fields as chat
from streamtool.protocols.gemini import request_fields as gemini
from streamtool.protocols.messages import request_fields as messages
from streamtool.protocols.ollama import request_fields as ollama
from streamtool.protocols.responses import request_fields as responses

_NAMES = {"Chat Completions": chat, "Messages": messages, "Responses": responses, "Ollama": ollama, "Gemini": gemini}


def _table(fields: Mapping[str, str]) -> str:
    """What is the same for several fields is said once."""
    said: dict[str, list[str]] = {}
    for name, what in fields.items():
        said.setdefault(what, []).append(f"`{name}`")
    rows = [f"| {', '.join(names)} | {what} |\n" for what, names in said.items()]
    return "| field | what becomes of it |\n|---|---|\n" + "".join(rows)


def page() -> str:
    """The whole page."""
    sections = [
        f"## {name}\n\n{_table(known.REQUEST_FIELDS)}\nOf a tool:\n\n{_table(known.TOOL_FIELDS)}"
        for name, known in _NAMES.items()
    ]
    return f"""\
<!-- made from the tables of fields by `python tests/test_docs.py`; a test keeps it current -->

# Request fields

What becomes of each field that the official SDKs can send, in a request and in a tool. Fields that nobody here knows
are treated like those that only their origin understands. Where a request passes as it came (nothing in it has to do
with tools, and the upstream speaks its protocol), all of its fields do.

{chr(10).join(sections)}"""
