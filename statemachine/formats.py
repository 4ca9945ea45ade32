"""The table: every known format, a few lines each. Adding one means adding a row and `tests/formats/<name>.md`.

What the fields mean is said in `format.py`; the grammar of each format, with examples, in `docs/formats.md`.
"""

from collections.abc import Mapping
from types import MappingProxyType

from statemachine.format import Anchor, Envelope, Format, Head, Json, Parameters, Shape, Span, check

TABLE = (
    Format(
        "tool_call",
        openers=("<tool_call>",),
        shapes=(Shape(Envelope()),),
        close="</tool_call>",
        models="Hermes, Qwen 2.5, Qwen 3; taught by default",
    ),
    Format(
        "labelled",
        openers=("TOOL_CALL{_}:{_}",),
        shapes=(Shape(Json(), Head(ends=("ARGUMENTS{_}:",))),),
        anchor=Anchor.LINE,
    ),
    Format(
        "invoke",
        wrappers=(
            ("<{ns}function_calls>", "</{ns}function_calls>"),
            ("<minimax:tool_call>", "</minimax:tool_call>"),
        ),
        openers=("<{ns}invoke{ }",),
        shapes=(
            Shape(
                Parameters(
                    key="<{ns}parameter{ }",
                    head=Head(attribute="name"),
                    close="</{ns}parameter>",
                    wrappers=(("<{ns}parameter_list>", "</{ns}parameter_list>"),),
                ),
                Head(ends=(">", "/>"), attribute="name"),
            ),
        ),
        close="</{ns}invoke>",
        models="Claude, MiniMax M2",
    ),
    Format(
        "fenced",
        shapes=(Shape(Envelope(name=("tool", "name", "function", "tool_name", "action"))),),
        fence=("json action", "tool_call", "tool_use", "tool_code"),
    ),
    Format(
        "object",
        shapes=(Shape(Envelope(name=("tool", "name", "function", "tool_name", "action"))),),
    ),
    Format(
        "openai_fragment",
        openers=('"tool_calls"{*}:',),
        shapes=(Shape(Envelope(calls="tool_calls", written_nest="function", array=True, as_string=True)),),
        anchor=Anchor.LINE,
    ),
    Format(
        "command",
        openers=("@",),
        shapes=(Shape(Json(), Head(ends=("{",), one_line=True, noise=("tool",))),),
        anchor=Anchor.LINE,
    ),
    Format(
        "action_object",
        shapes=(
            Shape(
                Envelope(
                    name=("tool",),
                    arguments=("args",),
                    nest=("action",),
                    written_nest="action",
                    thought="thought",
                    final=("final", "content"),
                ),
            ),
        ),
        anchor=Anchor.REPLY,
    ),
    Format(
        "react",
        openers=("Action{_}:{_}",),
        shapes=(Shape(Json(), Head(ends=("Action Input{_}:",))),),
        anchor=Anchor.LINE,
    ),
    Format(
        "mistral",
        openers=("[TOOL_CALLS]",),
        shapes=(
            Shape(Envelope(array=True)),
            Shape(Json(), Head(ends=("[ARGS]", "{"), id="[CALL_ID]")),
        ),
        models="Mistral, Ministral, Devstral, Magistral",
    ),
    Format(
        "qwen3_coder",
        wrappers=(("<tool_call>", "</tool_call>"),),
        wrapped=True,
        openers=("<function=",),
        shapes=(
            Shape(
                Parameters(key="<parameter=", head=Head(), close="</parameter>", trim=True),
                Head(),
            ),
        ),
        close="</function>",
        models="Qwen3-Coder, Qwen 3.5, Step 3.5, Nemotron 3",
    ),
)

FORMATS: Mapping[str, Format] = MappingProxyType({row.name: row for row in TABLE})

OPT_IN = frozenset({"action_object"})
"""Off unless taught or chosen by name: their markers occur in honest answers."""

DEFAULT = tuple(name for name in FORMATS if name not in OPT_IN)

REASONING = (
    Span("<think>", "</think>"),
    Span("<thinking>", "</thinking>"),
    Span("<seed:think>", "</seed:think>"),
    Span("<|START_THINKING|>", "<|END_THINKING|>"),
    Span("[THINK]", "[/THINK]"),
)

check(dict(FORMATS))
