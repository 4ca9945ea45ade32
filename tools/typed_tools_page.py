"""Makes `docs/typed-tools.md` from the tables of tools that only a type names."""

from collections.abc import Iterable

from streamtool.conversation import Tool
from streamtool.protocols.messages import typed_tools as messages
from streamtool.protocols.messages.toolsets import TOOLSETS
from streamtool.protocols.responses import typed_tools as responses
from streamtool.protocols.typed_tools import Fields, TypedTool

_SAMPLE: dict[str, Fields] = {
    "shell": {"environment": {"type": "local"}},
    "tool_search": {"execution": "client"},
    "computer_*": {"enable_zoom": True},
    "computer_use_preview": {"display_width": 1024, "display_height": 768, "environment": "browser"},
}
"""What has to stand in a tool of this type so that the client runs it, or what its description repeats."""
_DATES = {"text_editor_*": "text_editor_20250728", "computer_*": "computer_20251124"}
"""The newest version of tools that differ."""

_RUNS = {"client": "the client", "origin": "the vendor"}


def _offered(row: TypedTool) -> tuple[Tool, ...]:
    kind = _DATES.get(row.type, row.type)
    return tuple(row.offer(kind, _SAMPLE.get(row.type, {}))) if row.offer else ()


def _keys(tool: Tool) -> str:
    fields = tool.parameters or {}
    required = fields.get("required", ())
    return ", ".join(f"`{key}`" + ("" if key in required else "?") for key in fields.get("properties", ())) or "nothing"


def _names(row: TypedTool) -> str:
    tools = _offered(row)
    if len(tools) == 1:
        return f"`{tools[0].name}`: {_keys(tools[0])}"
    return f"{len(tools)} tools, listed below" if tools else ""


def _rows(rows: Iterable[TypedTool]) -> str:
    lines = []
    for row in rows:
        runs = f"the client, where {row.where}" if row.where else _RUNS[row.runs]
        result = f"`{row.result}`" if row.result else "in the call"
        lines.append(f"| `{row.type}` | {runs} | {_names(row)} | `{row.call}` | {result} |\n".replace("|  |", "| |"))
    return "".join(lines)


def _members(toolset: str) -> str:
    tools = [Tool(f"{toolset}.{name}", member.about, member.parameters()) for name, member in TOOLSETS[toolset].items()]
    return "".join(f"| `{tool.name}` | {tool.description} | {_keys(tool)} |\n" for tool in tools)


def _others(found: dict[str, str]) -> str:
    return "".join(f"| `{kind}` | {what} |\n" for kind, what in found.items())


def page() -> str:
    """The whole page."""
    head = "| type | who runs it | what the model knows | a call is | its result |\n|---|---|---|---|---|\n"
    members = "| name | description | takes |\n|---|---|---|\n"
    return f"""\
<!-- made from the tables of typed tools by `python tests/test_docs.py`; a test keeps it current -->

# Typed tools

Some tools come with a type instead of a schema: `shell`, `bash_20250124`. Where the client runs such a tool, the model
is offered it like any other, under a name and with a schema of ours, and the client receives the item or block of the
tool's own type. Where only the vendor can run it, it is left out and noted, or refused with
[`hosted_tools = "refuse"`](settings.md). A `*` stands for the date of a version, `?` marks what may be left out. These
tables name every type that the official SDKs know. A type that they do not name counts as the vendor's.

## Responses

{head}{_rows(responses.TYPED_TOOLS)}
The call is added when it begins and is whole when it is done. In between, the client hears the commands of `shell` as
the model writes them: `response.shell_call_command.added`, `.delta` and `.done`. They wait for the end of the call if
anything but `timeout_ms` and `max_output_length` stands before `commands`; those two come with the item. A
`shell_call` that ends `incomplete` holds no command, so that half a command never runs. The other items have no events
for their pieces (openai 3.54), so they come when they are whole. An `apply_patch_call` needs its operation, and is
added when it is done. A whole patch (`*** Begin Patch`) that the model writes for a single operation becomes an item
for each of its files. Arguments that make no item leave the call `incomplete`, and the response too; an
`apply_patch_call`, which cannot be incomplete, is left out then. With [`arguments = "complete"`](settings.md) the model
is asked again.

A call of `apply_patch` that the request does not offer is an unknown call, even if a shell is offered: nothing in a
request says whether the client's shell takes `apply_patch` as a command, and elsewhere the call would only fail there.

A choice names such a tool by its type. In the history, calls and results become text as those of functions do, and the
tools of a `tool_search_output` join the others. What a program called is history as it is; the program itself is told
with its `program_output`. The other items:

| item | what becomes of it |
|---|---|
{_others(responses.ITEMS)}
## Messages

{head}{_rows(messages.TYPED_TOOLS)}
The members of a toolset are tools of their own. A call of one has `name` (`left_click`) and `toolset_name` (`browser`).

{members}{_members("browser")}{_members("computer")}
The blocks of messages that are neither calls nor results of typed tools:

| block | what becomes of it |
|---|---|
{_others(messages.BLOCKS)}"""
