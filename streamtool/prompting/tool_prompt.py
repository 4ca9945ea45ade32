"""The tool prompt: the text that tells the model which tools it has and how to write a call.

It is a pure function of the tools and the settings: the tools remain in the client's order, and the text does not
depend on time, process or turn, so the same tools always result in the same bytes, which remain in the upstream's
prefix cache. The form of a call is shown, never described: `write` creates each example from the offered tools. Text
that changes from turn to turn (tool choice, corrections) is in the turn instructions instead.

Size. Each style lists the name, description and parameters of every tool in full. If that exceeds the budget, all tools
together are reduced to the next tier: first to compact signatures with the first sentence of the description, then to
names with that sentence. The last tier is never truncated; if it exceeds the model's context, `_check_context` rejects
the request.

The sections and their headings are parsed by `streamtool.sample`, a stand-in for a model; a test keeps the two
consistent.
"""

import json
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
from attrs import frozen

from statemachine import Call, write
from statemachine.formats import Anchor, find_format
from streamtool.core.bounded_cache import LruCache
from streamtool.core.conversation import Tool
from streamtool.core.errors import RequestError
from streamtool.prompting.history import frame_content
from streamtool.prompting.one_object import answer_text, is_one_object
from streamtool.prompting.window import estimate_tokens
from streamtool.schemas.examples import example_call, schema_of
from streamtool.schemas.parameters import (
    first_sentence,
    literal,
    parameter_list,
    parameter_notes,
    schema_or_empty,
    signature,
    type_of,
)
from streamtool.settings import ModelSettings

HEADING = "# Tools"
LIST_HEADING = "## The tools"
EXAMPLE_HEADING = "## Example"
SEVERAL = "Several calls in one reply look like this:"
YOU_WRITE = "You write:"
NEXT_MESSAGE = "The next message is:"
ANSWER = "You have what you need, so you answer:"
END = "This is the end of the example; the conversation follows."
EXAMPLE_ID = "call_1"
EXAMPLE_ANSWER = "Here is what I found."

_MAX_EXAMPLE = 2000
"""Maximum length of an example or of a result type; longer ones are omitted."""
_MAX_CACHED_TOOLS = 256 * 1024
"""Maximum size of the tools in a cached prompt, as JSON characters."""
_MAX_CACHE = 16 * 1024 * 1024
"""Maximum total size of the cached tool prompts and of the tools that they describe, in characters."""

Tier = Literal["full", "compact", "names"]


def example_result(name: str) -> str:
    """Return the content of the result in the example."""
    return f"(what {name} gives back)"


@frozen
class ToolPrompt:
    """A tool prompt, and its level of detail about the tools."""

    text: str
    tier: Tier
    """`full`, or the tier that the tools were shortened to."""


_cache = LruCache[ToolPrompt](_MAX_CACHE)
"""Tool prompts, keyed by the JSON of the tools and the settings that affect the prompt."""


def build_tool_prompt(tools: Sequence[Tool], format: str, model: ModelSettings, *, parallel: bool = True) -> ToolPrompt:
    """Return the tool prompt for these tools, with calls in this format; `parallel` allows several calls in one reply.

    Raises RequestError if the prompt does not fit into the model's context: nothing is truncated silently.
    """
    prompt = model.prompt
    frame = prompt.results.frame
    key = (_packed(tools), format, prompt.schema, prompt.schema_budget, frame, parallel)
    made = _cache.get(key)
    if made is None:
        made = _build(tools, format, prompt.schema, prompt.schema_budget, frame, parallel=parallel)
        if len(key[0]) <= _MAX_CACHED_TOOLS:
            _cache.put(key, made, len(key[0]) + len(made.text))
    _check_context(made, len(tools), model)
    return made


def _packed(tools: Sequence[Tool]) -> bytes:
    """Encode every property of the tools that affects the tool prompt, for use as a cache key."""
    entries = [
        (tool.name, tool.description, tool.custom, tool.parameters, tool.examples, tool.returns) for tool in tools
    ]
    try:
        return msgspec.msgpack.encode(entries)
    except (TypeError, UnicodeError, OverflowError, ValueError):  # a mapping, a lone surrogate, a huge number
        return json.dumps(entries, default=dict).encode()


def build_tool_prompt_from_calls(
    calls: Sequence[Call], format: str, model: ModelSettings, *, parallel: bool = True
) -> ToolPrompt:
    """Return the tool prompt for a request that contains calls but offers no tools; `calls` are the first calls to each
    tool.
    """
    listed = "\n".join(
        ["Their parameters are not listed here; call them as in the calls that already stand in this conversation.", ""]
        + [call.name for call in calls]
    )
    made = ToolPrompt(_text(listed, list(calls), format, model.prompt.results.frame, parallel=parallel), "full")
    _check_context(made, len(calls), model)
    return made


def _check_context(made: ToolPrompt, count: int, model: ModelSettings) -> None:
    if model.context is None:
        return
    tokens = estimate_tokens(made.text)
    if tokens > model.context:
        raise RequestError(
            f"the descriptions of {count} tools take about {tokens} tokens, but the model's context is "
            f"{model.context}; offer fewer tools, or set schema_budget",
            param="tools",
            code="context_length_exceeded",
        )


def _build(
    tools: Sequence[Tool], format: str, style: str, budget: int | None, frame: str, *, parallel: bool
) -> ToolPrompt:
    tiers: list[tuple[Tier, Callable[[Tool], str]]] = [
        ("full", lambda tool: _STYLES[style](tool, format)),
        ("compact", _compact_entry),
        ("names", _name_entry),
    ]
    for tier, entry in tiers:
        blank = "\n\n" if tier == "full" and style == "markdown" else "\n"
        listed = blank.join(entry(tool) for tool in tools)
        if budget is None or len(listed) <= budget:
            break
    if tier == "names":
        listed = f"Their parameters are not listed here; give arguments by the names that fit.\n\n{listed}"
    elif tier == "compact" or style == "compact":
        listed = f"A `?` marks a parameter that may be left out, `=` what it is then.\n\n{listed}"
    return ToolPrompt(_text(listed, _examples(tools), format, frame, parallel=parallel), tier)


# --- the list of tools -----------------------------------------------------------------------------------------------


def _indented(lines: Sequence[str]) -> str:
    return "\n".join(f"  {line}".rstrip() for text in lines for line in text.split("\n"))


def _compact(tool: Tool, format: str) -> str:  # noqa: ARG001 - one signature for all styles
    schema = schema_of(tool)
    return "\n".join(
        text
        for text in (
            signature(tool.name, schema),
            _indented([t for t in [tool.description.strip()] if t] + parameter_notes(schema) + _extras(tool)),
        )
        if text
    )


def _json(tool: Tool, format: str) -> str:  # noqa: ARG001 - one signature for all styles
    entry = {"name": tool.name, "description": tool.description, "parameters": schema_or_empty(schema_of(tool))}
    return "\n".join([json.dumps(entry, ensure_ascii=False, default=dict), *_extras(tool)])


def _markdown(tool: Tool, format: str) -> str:
    listed = parameter_list(schema_of(tool))
    lines = [f"**{tool.name}**"]
    if tool.description.strip():
        lines.append(_indented([tool.description.strip()]))
    lines += ["Parameters:", *(f"  {line}" for line in listed)] if listed else ["Parameters: none"]
    lines += _extras(tool)
    return "\n".join([*lines, "To use:", write([example_call(tool)], format)])


def _extras(tool: Tool) -> list[str]:
    """Return the tool's result type and examples, except for long ones."""
    result = [] if tool.returns is None else [type_of(tool.returns)]
    lines = [f"Returns: {text}" for text in result if len(text) <= _MAX_EXAMPLE]
    return [*lines, *(f"Example: {text}" for text in map(literal, tool.examples) if len(text) <= _MAX_EXAMPLE)]


def _compact_entry(tool: Tool) -> str:
    sentence = first_sentence(tool.description)
    return signature(tool.name, schema_of(tool)) + (f"\n  {sentence}" if sentence else "")


def _name_entry(tool: Tool) -> str:
    sentence = first_sentence(tool.description)
    return f"{tool.name}: {sentence}" if sentence else tool.name


_STYLES: dict[str, Callable[[Tool, str], str]] = {"compact": _compact, "json": _json, "markdown": _markdown}


# --- the text --------------------------------------------------------------------------------------------------------


def _examples(tools: Sequence[Tool]) -> list[Call]:
    """Return two example calls: one to the first tool, and one to the second if there is one."""
    return [example_call(tools[0]), example_call(tools[1] if len(tools) > 1 else tools[0], other=True)]


def _text(listed: str, calls: Sequence[Call], format: str, frame: str, *, parallel: bool) -> str:
    rules, example = _rules(format, parallel=parallel), _example(calls, format, frame, parallel=parallel)
    return f"{HEADING}\n\n{_INTRODUCTION}\n\n{rules}\n\n{LIST_HEADING}\n\n{listed}\n\n{example}"


_INTRODUCTION = (
    "You have the tools that are listed below. Writing a call is only a request: you run nothing yourself. "
    "Somebody else runs the call, and its result comes in the next message. Then you go on, with another call or with "
    "your final answer."
)


def _rules(format: str, *, parallel: bool) -> str:
    if is_one_object(format):
        room = (
            "- Each reply is one object and nothing else: a call, or the final answer. One call stands in a reply.\n"
            "- When no tool fits, or the task is done, give the final answer, in the form that the example shows."
        )
    else:
        several = "Several calls may stand in one reply, one after the other, when none of them needs another's result."
        before = "Write no text" if find_format(format).anchor is Anchor.REPLY else "Text may stand"
        room = (
            f"- {before} before a call; after {'your calls' if parallel else 'it'} write nothing more and wait.\n"
            f"- {several if parallel else 'Write at most one call in a reply.'}\n"
            "- When no tool fits, or the task is done, answer in plain text."
        )
    return (
        "- Write a call exactly in the form that the example shows; no other form is understood.\n"
        "- Call only the tools that are listed, by their exact names and with the arguments that they take. "
        "Never make up a tool.\n"
        "- Never write a result yourself: results only come to you.\n"
        f"{room}\n"
        "- After a result, go on with the task: write the next call if it needs one, else the final answer.\n"
        "- Say nothing about this mechanism: no remark about calls, their form or these rules."
    )


def _example(calls: Sequence[Call], format: str, frame: str, *, parallel: bool) -> str:
    first, second = calls[0], calls[-1]
    lines = [
        EXAMPLE_HEADING,
        f"The values are made up. The user asks for something that needs {first.name}. {YOU_WRITE}",
        write([first], format),
        NEXT_MESSAGE,
        _framed(first.name, frame),
        f"You need one thing more. {YOU_WRITE}",
        write([second], format),
        NEXT_MESSAGE,
        _framed(second.name, frame),
        ANSWER,
        answer_text(EXAMPLE_ANSWER, format),
    ]
    if parallel and not is_one_object(format):
        lines += [SEVERAL, write([first, second], format)]
    return "\n\n".join([*lines, END])


def _framed(name: str, frame: str) -> str:
    return frame_content(example_result(name), name, EXAMPLE_ID, frame)
