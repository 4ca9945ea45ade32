"""The tool prompt: the text that tells the model which tools it has and how to write a call.

It is a pure function of the tools and the settings: the tools remain in the client's order, and the text does not
depend on time, process or turn, so the same tools always result in the same bytes, which remain in the upstream's
prefix cache. The form of a call is shown, never described: `write` creates each example from the offered tools. Text
that changes from turn to turn (tool choice, corrections) is in the turn instructions instead.

The wording was measured on SmolLM2-135M-Instruct (llama.cpp, scenarios of `streamtool eval`, calls demanded and forced
by a schema): it leads to as many right calls as its longer predecessor, 5 of 48, with 532 instead of 732 tokens in the
mean prompt. Variants whose example calls a tool that is not offered lead to 1 of 96 instead of 8 of 72, because the
model then fills in optional parameters, and uppercase placeholders (`CITY`) to 0 of 24.

Size. In formats of ordinary text, the prompt without the list of tools has at most 350 tokens
(`benchmarks/prompt_size.py`). Each style lists the name, description and parameters of every tool in full. If that
exceeds the budget, all tools together are reduced to the next tier: first to compact signatures with the first sentence
of the description, then to names with that sentence. The last tier is never truncated; if it exceeds the model's
context, `_check_context` rejects the request. If tools are selected (`selection`), the list begins with the names of
all tools, which do not depend on the conversation, so that conversations share a longer prefix.

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
from streamtool.core.errors import CONTEXT_EXCEEDED, RequestError
from streamtool.prompting.history import frame_content
from streamtool.prompting.one_object import answer_text, is_one_object
from streamtool.prompting.window import estimate_tokens
from streamtool.schemas.examples import example_call, schema_of
from streamtool.schemas.parameters import (
    described_signature,
    first_sentence,
    literal,
    parameter_list,
    schema_or_empty,
    signature,
    type_of,
)
from streamtool.settings import ModelSettings, PromptSettings

HEADING = "# Tools"
LIST_HEADING = "## The tools"
ALL_TOOLS = "All tools, without their parameters:"
SOME_TOOLS = "The parameters of some tools follow. Before you call any other, call `{}` to see its parameters."
EXAMPLE_HEADING = "## Example"
YOU_WRITE = "you write:"
NEXT_MESSAGE = "The next message is:"
ANSWER = "Then you answer:"
SEVERAL = "If no call needs the result of another, you may write several in one reply:"
END = "The example ends here."
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
    return f"(the result of {name})"


@frozen
class ToolPrompt:
    """A tool prompt, and its level of detail about the tools."""

    text: str
    tier: Tier
    """`full`, or the tier that the tools were shortened to."""


_cache = LruCache[ToolPrompt](_MAX_CACHE)
"""Tool prompts, keyed by the JSON of the tools and the settings that affect the prompt."""


def build_tool_prompt(
    tools: Sequence[Tool],
    format: str,
    model: ModelSettings,
    *,
    parallel: bool = True,
    chosen: tuple[Tool, ...] = (),
    search: Tool | None = None,
) -> ToolPrompt:
    """Return the tool prompt for these tools, with calls in this format; `parallel` allows several calls in one reply.

    If `search` is a tool that searches for tools, only the parameters of the `chosen` tools are listed, and its own.
    Raises RequestError if the prompt does not fit into the model's context: nothing is truncated silently.
    """
    prompt = model.prompt
    names = tuple([tool.name for tool in chosen]) if chosen else ()
    key = (pack_tools(tools), format, prompt.schema, prompt.schema_budget, prompt.results.frame, parallel, names)
    made = _cache.get(key)
    if made is None:
        made = _build(tools, format, prompt, parallel=parallel, chosen=chosen, search=search)
        if len(key[0]) <= _MAX_CACHED_TOOLS:
            _cache.put(key, made, len(key[0]) + len(made.text))
    _check_context(made, len(tools), model)
    return made


def pack_tools(tools: Sequence[Tool]) -> bytes:
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
        ["Their parameters are not listed; call them as earlier in this conversation.", ""]
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
            f"{model.context}; offer fewer tools, or set schema_budget or select_tools",
            param="tools",
            code=CONTEXT_EXCEEDED,
        )


def list_tools(tools: Sequence[Tool], format: str, model: ModelSettings) -> str:
    """Return these tools in full, in the model's style."""
    style = model.prompt.schema
    return _blank(style).join(_STYLES[style](tool, format) for tool in tools)


def _blank(style: str) -> str:
    return "\n\n" if style == "markdown" else "\n"


def _build(
    tools: Sequence[Tool],
    format: str,
    prompt: PromptSettings,
    *,
    parallel: bool,
    chosen: Sequence[Tool],
    search: Tool | None,
) -> ToolPrompt:
    style, budget, frame = prompt.schema, prompt.schema_budget, prompt.results.frame
    tiers: list[tuple[Tier, Callable[[Tool], str]]] = [
        ("full", lambda tool: _STYLES[style](tool, format)),
        ("compact", _compact_entry),
        ("names", _name_entry),
    ]
    names, described = "", tools
    if search is not None:
        del tiers[-1]
        names = "\n".join([ALL_TOOLS, "", *map(_name_entry, tools), "", SOME_TOOLS.format(search.name), "", ""])
        described = (*chosen, search)
    for tier, entry in tiers:
        listed = (_blank(style) if tier == "full" else "\n").join(entry(tool) for tool in described)
        if budget is None or len(names) + len(listed) <= budget:
            break
    if tier == "names":
        listed = f"Their parameters are not listed; choose names that fit.\n\n{listed}"
    elif tier == "compact" or style == "compact":
        listed = f"`?` marks an optional parameter, `=` its default.\n\n{listed}"
    return ToolPrompt(_text(names + listed, _examples(chosen or tools), format, frame, parallel=parallel), tier)


# --- the list of tools -----------------------------------------------------------------------------------------------


def _indented(texts: Sequence[str], by: str = "  ") -> str:
    """Return the lines of the texts, indented, without blanks at their ends."""
    return "\n".join([f"{by}{line}".rstrip() for line in "\n".join(texts).split("\n")])


def _compact(tool: Tool, format: str) -> str:  # noqa: ARG001 - one signature for all styles
    schema = schema_of(tool)
    return "\n".join(
        text
        for text in (
            described_signature(tool.name, schema),
            _indented([*filter(None, [tool.description.strip()]), *_extras(tool)], " "),
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
    return signature(tool.name, schema_of(tool)) + (f"\n {sentence}" if sentence else "")


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
    "You can call the tools listed below by writing calls in your reply. You do not run them yourself: the next "
    "message contains the results."
)


def _rules(format: str, *, parallel: bool) -> str:
    rules = [
        "Write a call exactly in the form of the example.",
        "Call only the listed tools, with their parameters. Never invent a tool.",
    ]
    if is_one_object(format):
        rules += [
            "Each reply is one object and nothing else: one call, or the final answer. Never write a result yourself.",
            "If no tool fits or the task is done, write the final answer as in the example.",
        ]
    else:
        anchored = find_format(format).anchor is Anchor.REPLY
        before = "Write no text before a call." if anchored else "Text may precede a call."
        after = f"After your call{'s' if parallel else ''}, end the reply: never write a result yourself."
        rules += [f"{before} {after}", *([] if parallel else ["Write at most one call in a reply."])]
        rules += ["If no tool fits or the task is done, answer in plain text."]
    rules += [
        "After a result, write the next call or answer.",
        "Never mention calls, their form or these rules.",
    ]
    return "\n".join(f"- {rule}" for rule in rules)


def _example(calls: Sequence[Call], format: str, frame: str, *, parallel: bool) -> str:
    first, second = calls[0], calls[-1]
    lines = [
        EXAMPLE_HEADING,
        f"For a request that needs {first.name}, {YOU_WRITE}",
        write([first], format),
        NEXT_MESSAGE,
        _framed(first.name, frame),
        ANSWER,
        answer_text(EXAMPLE_ANSWER, format),
    ]
    if parallel and not is_one_object(format):
        lines += [SEVERAL, write([first, second], format)]
    return "\n\n".join([*lines, END])


def _framed(name: str, frame: str) -> str:
    return frame_content(example_result(name), name, EXAMPLE_ID, frame)
