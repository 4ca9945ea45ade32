"""Generate the pages in `docs/reference/protocols/`: one for each row of the table of protocols.

A page begins with the handwritten text in `tools/protocols/NAME.md`. The remainder is generated from the tables of
protocols, options, request fields and typed tools.
"""

import textwrap
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Final

from streamtool.core.conversation import Tool
from streamtool.protocols.decisions import Decision, Field
from streamtool.protocols.messages import typed_tools as messages
from streamtool.protocols.options import CONTAINERS, OPTIONS, Absent, Option, OptionPlace, Spelling
from streamtool.protocols.registry import UPSTREAMS
from streamtool.protocols.responses import typed_tools as responses
from streamtool.protocols.shared.typed_tools import Fields, TypedTool
from streamtool.protocols.table import PROTOCOLS, ROWS, ProtocolRow
from streamtool.settings import ModelSettings

TEXTS: Final = Path(__file__).resolve().parent / "protocols"
TYPED: Final = {
    "messages": (messages.TYPED_TOOLS, messages.BLOCKS, "blocks"),
    "responses": (responses.TYPED_TOOLS, responses.ITEMS, "items"),
}
"""Protocol with typed tools → the tools, the handling of other parts, and the name of these parts."""
SAMPLES: Final[Mapping[str, Fields]] = {
    "shell": {"environment": {"type": "local"}},
    "tool_search": {"execution": "client"},
    "computer_*": {"enable_zoom": True},
    "computer_use_preview": {"display_width": 1024, "display_height": 768, "environment": "browser"},
}
"""Tool type → the fields that make the client run a tool of this type, or that its description repeats."""
NEWEST: Final = {"text_editor_*": "text_editor_20250728", "computer_*": "computer_20251124"}
"""Tool type with several versions → its newest version."""
ABSENT: Final = {Absent.UNSUPPORTED: "unsupported (dropped and logged)", Absent.REJECTED: "rejected with 400"}
"""How options that a protocol lacks are treated."""


def page(row: ProtocolRow) -> str:
    """Return the complete page for a protocol."""
    text = (TEXTS / f"{row.name}.md").read_text(encoding="utf-8")
    parts = [text, "\n## Properties\n\n", _properties(row), "\n## Options\n\n", _options(row.name)]
    if row.paths:
        fields = import_module(f"streamtool.protocols.{row.name}.request_fields")
        own = {name: field for name, field in fields.REQUEST_FIELDS.rows.items() if not _is_option(row.name, name)}
        parts += ["\n## Request fields\n\n", _fields(own, CONTAINERS.get(row.name))]
        parts += ["\nTool fields:\n\n", _fields(fields.TOOL_FIELDS, None)]
    if row.name in TYPED:
        parts += ["\n## Types of tools\n\n", _typed_tools(row.name)]
    return _MADE + "".join(parts)


_MADE: Final = "<!-- made by tools/protocols_page.py: run `python tests/test_docs.py` -->\n\n"


def _item(label: str, text: str) -> str:
    line = f"- {label}: {text}"
    wrapped = textwrap.wrap(line, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(wrapped) + "\n"


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


# --- the row ----------------------------------------------------------------------------------------------------------


def _properties(row: ProtocolRow) -> str:
    upstream = UPSTREAMS[row.name]
    model = ModelSettings("MODEL")
    others = (path if method == "GET" else f"{method} {path}" for path, method in row.list_paths)
    methods = _codes(method for method in row.forcing if method != row.auto_forcing)
    features = {"prefill": row.prefill, "native tools": row.native_tools, "signed calls": row.signs_calls}
    facts = {
        "paths for clients": _codes(row.paths) + (", including over a websocket" if row.websocket else ""),
        "other paths": _codes([*(path for path, _ in row.other_paths), *others]),
        "upstream path": f"`{upstream.request_path(model, stream=True)}`; models at `{upstream.MODELS_PATH}`",
        "assumed for": _codes(row.hosts),
        "key": f"`{upstream.KEY_HEADER.decode()}`"
        + (f"; clients may also send `?{row.query_key}=`" if row.query_key else ""),
        "[forcing methods](../../when-the-model-does-not-call.md#force-a-call)": (
            f"`{row.auto_forcing}` (`auto`)" + (f", {methods}" if methods else "")
        ),
        "supported": ", ".join(name for name, there in features.items() if there),
        "unsupported": ", ".join(name for name, there in features.items() if not there),
    }
    return "".join(_item(label, text) for label, text in facts.items() if text)


# --- options ----------------------------------------------------------------------------------------------------------


def _options(protocol: str) -> str:
    """Return the options, grouped by the location of their values."""
    container = CONTAINERS.get(protocol)
    found: dict[str, list[str]] = {}
    for option in OPTIONS:
        client, upstream = option.client(protocol), option.upstream(protocol)
        if not PROTOCOLS[protocol].paths:
            client = upstream
        if isinstance(client, Absent):
            found.setdefault(ABSENT[client], []).append(f"`{option.name}`")
            continue
        inner = container if client.path[0] == container else None
        label = f"in `{inner}`" if inner else "in the body"
        found.setdefault(label, []).append(_option(option, client, upstream, inner))
    return "".join(_item(label, ", ".join(found[label])) for label in sorted(found))


def _option(option: Option, client: Spelling, upstream: OptionPlace, container: str | None) -> str:
    """Return the option's name, followed by its name in the protocol and its limits."""
    names = [".".join(path[container is not None :]) for path in (client.path, *client.also)]
    said = "" if names == [option.name] else " or ".join(f"`{name}`" for name in names)
    if isinstance(upstream, Absent):
        limit = "from clients only"
    elif upstream.path != client.path:
        limit = f"to upstreams `{'.'.join(upstream.path)}`"
    elif upstream.note and upstream.note != client.note:
        limit = f"to upstreams {upstream.note}"
    else:
        limit = client.note
    details = "; ".join(filter(None, (said, limit)))
    return f"`{option.name}`" + (f" ({details})" if details else "")


# --- fields -----------------------------------------------------------------------------------------------------------


def _is_option(protocol: str, name: str) -> bool:
    """Return whether the field is in the list of options."""
    for option in OPTIONS:
        place = option.client(protocol)
        if isinstance(place, Spelling):
            for path in (place.path, *place.also):
                if name in (".".join(path), path[0]) and name != CONTAINERS.get(protocol):
                    return True
    return False


def _fields(fields: Mapping[str, Field], container: str | None) -> str:
    """Return one list item for each decision."""
    found: dict[Decision, list[str]] = {}
    members: dict[Decision, list[str]] = {}
    for name, field in fields.items():
        outer, _, inner = name.partition(".")
        note = f" ({field.note})" if field.note else ""
        if inner and outer == container:
            members.setdefault(field.decision, []).append(f"`{inner}`{note}")
        else:
            found.setdefault(field.decision, []).append(f"`{name}`{note}")
    items = []
    for decision in Decision:
        names = ", ".join(found.get(decision, ()))
        inner = f"in `{container}` {', '.join(members[decision])}" if decision in members else ""
        if names or inner:
            items.append(_item(decision.value, "; ".join(filter(None, (names, inner)))))
    return "".join(items)


# --- typed tools ------------------------------------------------------------------------------------------------------


def _typed_tools(protocol: str) -> str:
    rows, others, parts = TYPED[protocol]
    handled: dict[str, list[str]] = {}
    for kind, what in others.items():
        handled.setdefault(what, []).append(kind)
    ours = [row for row in rows if row.runs == "client"]
    shapes = {(row.call, row.result) for row in ours}
    shape = " Calls are `{}` blocks, and results are `{}` blocks.".format(*shapes.pop()) if len(shapes) == 1 else ""
    legend = f"`*` is the date of a version, and `?` marks optional arguments.{shape}"
    return (
        textwrap.fill(legend, 120, break_on_hyphens=False)
        + "\n\n"
        + "".join(_typed_tool(row, shape=not shape) for row in ours)
        + _item("run by the vendor", _codes(row.type for row in rows if row.runs == "origin"))
        + f"\nOther {parts}:\n\n"
        + "".join(_item(_codes(kinds), what) for what, kinds in handled.items())
    )


def _pair(row: TypedTool) -> str:
    return ", ".join(f"`{name}`" for name in (row.call, row.result) if name)


def _typed_tool(row: TypedTool, *, shape: bool) -> str:
    condition = f" if {row.condition}" if row.condition else ""
    return _item(f"`{row.type}`{condition}", _known(row) + (f"; {_pair(row)}" if shape else ""))


def _known(row: TypedTool) -> str:
    kind = NEWEST.get(row.type, row.type)
    tools = tuple(row.offer(kind, SAMPLES.get(row.type, {}))) if row.offer else ()
    if len(tools) == 1:
        return f"`{tools[0].name}` ({_arguments(tools[0])})"
    return f"members {_codes(tool.name.rpartition('.')[2] for tool in tools)}"


def _arguments(tool: Tool) -> str:
    schema = tool.parameters or {}
    required = schema.get("required", ())
    return ", ".join(f"`{key}`" + ("" if key in required else "?") for key in schema.get("properties", ()))


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    f"docs/reference/protocols/{row.name}.md": partial(page, row) for row in ROWS
}
"""Generated pages and the functions that generate them."""
