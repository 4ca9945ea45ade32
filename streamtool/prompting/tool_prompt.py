"""The tool prompt: the text that teaches the model its tools and the one way to call them.

A pure function of the tools and the settings: the order is the client's, nothing depends on time, process or turn, so
the same tools give the same bytes and the upstream's prefix cache holds them. How a call is written is shown, never
described: each example is made by `write` from the tools that are really offered. What changes from turn to turn
(tool choice, corrections) is in the tail, not here.

Size. Each style lists name, description and parameters of every tool in full. When that exceeds the budget, all tools
fall to the next tier together: compact signatures with the first sentence of the description, then names with the
first sentence. The last tier is never cut; whether it fits is the business of the context guard.

The sections and their headings are read by `streamtool.sample`, which stands for a model; a test holds both together.
"""

import json
from collections.abc import Callable, Sequence
from typing import Literal

from attrs import frozen

from statemachine import Call, write
from streamtool.conversation import Tool
from streamtool.errors import RequestError
from streamtool.kept import Kept
from streamtool.prompting.examples import example_call, schema_of
from streamtool.prompting.history import framed
from streamtool.prompting.one_object import answer_text, is_whole
from streamtool.prompting.window import estimate
from streamtool.schema import first_sentence, full, literal, markdown, notes, signature, type_of
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

_LONGEST = 2000
"""Characters of an example, or of the type of a result, beyond which it is left out."""
_LARGEST = 256 * 1024
"""Characters of tools, as JSON, whose prompt is kept."""
_MOST = 16 * 1024 * 1024
"""Characters of all tool prompts that are kept, and of the tools they were made for."""

Tier = Literal["full", "compact", "names"]


def example_result(name: str) -> str:
    """The content of the example's result."""
    return f"(what {name} gives back)"


@frozen
class Contract:
    """The text, and how much of the tools it holds."""

    text: str
    tier: Tier
    """`full`: everything; what was shortened else."""


_kept = Kept[Contract](_MOST)
"""Tool prompts by the JSON of the tools and what else decides."""


def contract(tools: Sequence[Tool], format: str, model: ModelSettings, *, parallel: bool = True) -> Contract:
    """The tool prompt of these tools, calls written in this format. `parallel`: a reply may hold several calls.

    Raises RequestError when the model's context cannot hold it: nothing is cut in silence.
    """
    prompt = model.prompt
    entries = [
        (tool.name, tool.description, tool.custom, tool.parameters, tool.examples, tool.returns) for tool in tools
    ]
    how = (format, prompt.schema, prompt.schema_budget, prompt.results.frame)
    key = (json.dumps(entries, ensure_ascii=False, default=dict), *how, parallel)
    made = _kept.get(key)
    if made is None:
        made = _contract(tools, *how, parallel=parallel)
        if len(key[0]) <= _LARGEST:
            _kept.put(key, made, len(key[0]) + len(made.text))
    _guard(made, len(tools), model)
    return made


def contract_of_names(calls: Sequence[Call], format: str, model: ModelSettings, *, parallel: bool = True) -> Contract:
    """The tool prompt of a request that offers no tools but holds calls: `calls` is the first call of each tool."""
    listed = "\n".join(
        ["Their parameters are not listed here; call them as in the calls that already stand in this conversation.", ""]
        + [call.name for call in calls]
    )
    made = Contract(_text(listed, list(calls), format, model.prompt.results.frame, parallel=parallel), "full")
    _guard(made, len(calls), model)
    return made


def _guard(made: Contract, count: int, model: ModelSettings) -> None:
    if model.context is None:
        return
    tokens = estimate(made.text)
    if tokens > model.context:
        raise RequestError(
            f"the description of {count} tools takes about {tokens} tokens and the model reads {model.context}; "
            "offer fewer tools, or set schema_budget",
            param="tools",
            code="context_length_exceeded",
        )


def _contract(
    tools: Sequence[Tool], format: str, style: str, budget: int | None, frame: str, *, parallel: bool
) -> Contract:
    tiers: list[tuple[Tier, Callable[[Tool], str]]] = [
        ("full", lambda tool: _STYLES[style](tool, format)),
        ("compact", _shortened),
        ("names", _named),
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
    return Contract(_text(listed, _examples(tools), format, frame, parallel=parallel), tier)


# --- the list of tools -----------------------------------------------------------------------------------------------


def _indented(lines: Sequence[str]) -> str:
    return "\n".join(f"  {line}".rstrip() for text in lines for line in text.split("\n"))


def _compact(tool: Tool, format: str) -> str:  # noqa: ARG001 - one signature for all styles
    schema = schema_of(tool)
    return "\n".join(
        text
        for text in (
            signature(tool.name, schema),
            _indented([t for t in [tool.description.strip()] if t] + notes(schema) + _told(tool)),
        )
        if text
    )


def _json(tool: Tool, format: str) -> str:  # noqa: ARG001 - one signature for all styles
    entry = {"name": tool.name, "description": tool.description, "parameters": full(schema_of(tool))}
    return "\n".join([json.dumps(entry, ensure_ascii=False, default=dict), *_told(tool)])


def _markdown(tool: Tool, format: str) -> str:
    listed = markdown(schema_of(tool))
    lines = [f"**{tool.name}**"]
    if tool.description.strip():
        lines.append(_indented([tool.description.strip()]))
    lines += ["Parameters:", *(f"  {line}" for line in listed)] if listed else ["Parameters: none"]
    lines += _told(tool)
    return "\n".join([*lines, "To use:", write([example_call(tool)], format)])


def _told(tool: Tool) -> list[str]:
    """What the client tells of calls and results beside the schema, as far as it is short."""
    result = [] if tool.returns is None else [type_of(tool.returns)]
    lines = [f"Returns: {text}" for text in result if len(text) <= _LONGEST]
    return [*lines, *(f"Example: {text}" for text in map(literal, tool.examples) if len(text) <= _LONGEST)]


def _shortened(tool: Tool) -> str:
    sentence = first_sentence(tool.description)
    return signature(tool.name, schema_of(tool)) + (f"\n  {sentence}" if sentence else "")


def _named(tool: Tool) -> str:
    sentence = first_sentence(tool.description)
    return f"{tool.name}: {sentence}" if sentence else tool.name


_STYLES: dict[str, Callable[[Tool, str], str]] = {"compact": _compact, "json": _json, "markdown": _markdown}


# --- the text --------------------------------------------------------------------------------------------------------


def _examples(tools: Sequence[Tool]) -> list[Call]:
    """Two calls to show: of the first tool, and of the next one if there is one."""
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
    if is_whole(format):
        room = (
            "- Each reply is one object and nothing else: a call, or the final answer. One call stands in a reply.\n"
            "- When no tool fits, or the task is done, give the final answer, in the form that the example shows."
        )
    else:
        several = "Several calls may stand in one reply, one after the other, when none of them needs another's result."
        room = (
            f"- Text may stand before a call; after {'your calls' if parallel else 'it'} write nothing more and wait.\n"
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
    if parallel and not is_whole(format):
        lines += [SEVERAL, write([first, second], format)]
    return "\n\n".join([*lines, END])


def _framed(name: str, frame: str) -> str:
    return framed(example_result(name), name, EXAMPLE_ID, frame)
