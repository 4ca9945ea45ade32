"""Scenarios of the suite: a conversation with tools, and the calls or the answer that it requires.

`suite.toml` has one table per tool (`[tool.NAME]`: `description`, `parameters`, `required`) and one per scenario:

    name, group   the name, which is unique, and the ability that the scenario measures
    ask           the last message of the user
    tools         names of the offered tools
    more          number of further tools, generated, to add to them
    turns         number of earlier messages in the conversation
    choice        tool choice: `auto` (the default), `required`, `none`, or the name of a tool
    calls         the expected calls of a reply, in any order; empty if no call is right
    steps         instead of `calls`: the expected calls, step by step; each step's results lead to the next one
    results       result of each tool, or a list of the results of its successive calls; `{"status": "ok"}` if missing
    answer        texts that the final answer contains, or alternatives (`any`)
    form, value   JSON Schema of the answer, and its expected value
    exact         whether strings are compared byte for byte instead of regardless of case and whitespace

An expected value may be `{any = […]}`, one of several values (`"*"`: any value), with `absent = true` if the argument
may be omitted. Arguments that are not listed must be omitted.
"""

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Final, Protocol

from attrs import evolve, field, frozen

from streamtool.core.conversation import Message, TextPart, Tool, ToolCall, ToolResult
from streamtool.core.json_value import Json

_NOUNS: Final = (
    "invoice", "ticket", "project", "branch", "playlist", "recipe", "sensor", "vehicle", "lesson", "booking", "coupon",
    "warehouse", "shipment", "survey", "contract", "device", "channel", "backup", "dashboard", "webhook",
)  # fmt: skip
_VERBS: Final = (
    ("list", "List all"),
    ("get", "Get one"),
    ("archive", "Archive one"),
    ("rename", "Rename one"),
    ("count", "Count the"),
)
_PAST: Final = (
    ("What is the weather in Turin?", "Turin", '{"degrees": 17, "sky": "cloudy"}', "It is cloudy, 17 degrees."),
    ("And in Lyon?", "Lyon", '{"degrees": 21, "sky": "clear"}', "It is clear, 21 degrees."),
    ("Is that warmer?", "", "", "Yes, by four degrees."),
)
"""Earlier turns: question, city of a call of `get_weather` (if any), its result, and the answer."""

Expected = Mapping[str, Json]
"""The expected arguments of a call."""


@frozen
class ExpectedCall:
    """A call that the reply should contain."""

    name: str
    arguments: Expected


@frozen
class MadeCall:
    """A call that the client received."""

    name: str
    arguments: str
    """JSON text."""
    complete: bool = True


class SuiteSession(Protocol):
    """The tools of one conversation in another suite, which executes its calls and judges them."""

    def execute(self, calls: Sequence[MadeCall]) -> Sequence[str]:
        """Execute the calls of a reply, and return the result of each."""

    def end_turn(self) -> None:
        """Note that a reply without calls has ended the turn of a user's message."""

    def fault(self) -> str:
        """Return why the calls are wrong after the last turn, or ""."""


@frozen
class Scenario:
    """A conversation, and what a right reply to it contains."""

    name: str
    group: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    choice: str = "auto"
    steps: tuple[tuple[ExpectedCall, ...], ...] = ()
    """Expected calls, step by step; a reply without calls follows the last step. Empty if no call is right."""
    results: Mapping[str, tuple[str, ...]] = field(factory=dict)
    """Results of each tool, call by call; the last one is repeated."""
    answer: tuple[str, ...] = ()
    """Texts that the final answer contains: one of them or, with `all_of`, all. Empty if any answer is right."""
    all_of: bool = True
    """Whether the final answer must contain all of them."""
    form: Mapping[str, Json] | None = None
    value: Json = None
    exact: bool = False
    checker: Callable[[Sequence[MadeCall]], str] | None = None
    """Another suite's own checker of the calls of one reply: it returns why they are wrong, or ""."""
    session: Callable[[], SuiteSession] | None = None
    """Begins a conversation in which another suite executes the calls."""
    turns: tuple[Message, ...] = ()
    """With a session: further messages of the user; each follows a reply without calls."""

    @property
    def demands(self) -> bool:
        """Whether the client demands a call."""
        return self.choice not in ("auto", "none")

    @property
    def continues(self) -> bool:
        """Whether the calls of the first reply are followed by results and another reply."""
        return len(self.steps) > 1 or bool(self.steps and self.answer)


@cache
def suite() -> tuple[Scenario, ...]:
    """Return all scenarios, in the order of the file."""
    found = tomllib.loads((files(__package__) / "suite.toml").read_text(encoding="utf-8"))
    tools = {name: _tool(name, row) for name, row in found["tool"].items()}
    return tuple(_scenario(row, tools) for row in found["scenario"])


def _tool(name: str, row: Mapping[str, Json]) -> Tool:
    schema = {"type": "object", "properties": row["parameters"], "required": row["required"]}
    return Tool(name, str(row["description"]), schema)


def _scenario(row: Mapping[str, Json], tools: Mapping[str, Tool]) -> Scenario:
    offered = [tools[name] for name in row["tools"]]
    offered += list(_more_tools(row.get("more", 0)))
    offered.sort(key=lambda tool: (len(tool.name) * 7919 + ord(tool.name[-1])) % 101)  # the right one is not the first
    steps = row["steps"] if "steps" in row else [row["calls"]] if row.get("calls") else []
    answer = row.get("answer", ())
    return Scenario(
        row["name"],
        row["group"],
        (*_history(row.get("turns", 0)), Message("user", (TextPart(row["ask"].strip("\n")),))),
        tuple(offered),
        row.get("choice", "auto"),
        tuple(tuple(ExpectedCall(name, value) for call in step for name, value in call.items()) for step in steps),
        {name: (text,) if isinstance(text, str) else tuple(text) for name, text in row.get("results", {}).items()},
        tuple(answer["any"] if isinstance(answer, Mapping) else answer),
        not isinstance(answer, Mapping),
        row.get("form"),
        row.get("value"),
        row.get("exact", False),
    )


def _more_tools(count: int) -> Iterator[Tool]:
    """Yield this many tools that no scenario needs."""
    properties = {"id": {"type": "string"}, "name": {"type": "string"}}
    made = ((noun, *verb) for noun in _NOUNS for verb in _VERBS)
    for _, (noun, verb, about) in zip(range(count), made, strict=False):
        name = f"{verb}_{noun}s" if verb in ("list", "count") else f"{verb}_{noun}"
        required = [] if verb in ("list", "count") else ["id"]
        schema = {"type": "object", "properties": properties if required else {}, "required": required}
        yield Tool(name, f"{about} {noun}{'' if required else 's'}.", schema)


def _history(turns: int) -> Iterator[Message]:
    """Yield earlier messages of a conversation: this many questions with their answers."""
    for turn in range(turns):
        question, city, result, answer = _PAST[turn % len(_PAST)]
        yield Message("user", (TextPart(question),))
        if city:
            call = ToolCall(f"call_{turn}", "get_weather", json.dumps({"city": city}))
            yield Message("assistant", (), calls=(call,))
            yield Message("user", results=(ToolResult(call.id, (TextPart(result),)),))
        yield Message("assistant", (TextPart(answer),))


def demanding(scenario: Scenario) -> Scenario:
    """Return the scenario with a demanded call, if it expects one and leaves the choice to the model."""
    return evolve(scenario, choice="required") if scenario.steps and scenario.choice == "auto" else scenario


def groups(scenarios: Sequence[Scenario]) -> tuple[str, ...]:
    """Return the groups of these scenarios, in order."""
    return tuple(dict.fromkeys(scenario.group for scenario in scenarios))
