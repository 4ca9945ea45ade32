"""Shared by the tests of all clients: a task of two turns, the model that plays it, and the expected outcome.

A `Task` is new in each run: names, arguments and results are random, so nothing can be right by chance. `Model` is a
text-only upstream. It finds its task by the name of the model, looks for the tools in the prompt, and writes a sentence
and the calls of the task in small deltas; when it finds the framed results in the prompt, it quotes them. A client's
test runs the loop in the client's usual way and reports an `Outcome`; `check` compares.
"""

import json
import random
import re
import string
from typing import Any

from attrs import field, frozen

from statemachine import parse
from streamtool.testing import Recorded, Script, ScriptedUpstream, status, text

KINDS = ("one", "two", "twice", "bare")
"""One call; two calls of different tools in one reply; two calls of the same tool in one reply; one call without
arguments and without any text before it.
"""
TIMEOUT = 10.0
"""Timeout of a client in seconds; its own default would be minutes."""
DELTA = 4
"""Characters per piece of the model's stream."""
USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}

_RESULT = re.compile(r'<tool_response name="(\w+)">\n(.*?)\n</tool_response>', re.DOTALL)


def word(least: int = 6) -> str:
    """Return a name that occurs in no prompt by chance."""
    rest = random.choices(string.ascii_lowercase + string.digits + "_", k=random.randint(least, 14))
    return random.choice(string.ascii_lowercase) + "".join(rest)


def _arguments(properties: dict[str, Any]) -> dict[str, Any]:
    """Return a value for each property, with everything that is awkward in JSON."""
    values = {
        "string": lambda: f'{word()} "Grüße" \\ <&> 🌡\n\t\x85\u2028\u2029{{"{word()}": [1]}}',
        "integer": lambda: random.randint(-(10**9), 10**9),
        "number": lambda: random.randint(1, 999) + 0.5,
        "boolean": lambda: random.random() < 0.5,
        "array": lambda: [word(), "", "</tool"],
        "object": lambda: {word(): {word(): word()}, word(): {}},
    }
    return {key: values[kind["type"]]() for key, kind in properties.items()}


@frozen
class Offer:
    """A tool offered by the client."""

    name: str
    parameters: dict[str, Any]
    """Its JSON Schema."""
    description: str = "Looks something up."

    @classmethod
    def new(cls, *kinds: str) -> "Offer":
        extra: dict[str, Any] = {"array": {"items": {"type": "string"}}}
        properties = {word(): {"type": kind, **extra.get(kind, {})} for kind in kinds}
        return cls(word(), {"type": "object", "properties": properties, "required": list(properties)})


@frozen
class Planned:
    """A call that the model will write, and the result of the client's tool."""

    name: str
    arguments: dict[str, Any]
    result: str

    @classmethod
    def of(cls, offer: Offer) -> "Planned":
        arguments = _arguments(offer.parameters["properties"])
        return cls(offer.name, arguments, f'{word()} & <b>"{random.randint(0, 10**9)}"</b> 🌡\nline {{"two": 2}}')


@frozen
class Task:
    """A conversation of two turns."""

    model: str
    system: str
    question: str
    offers: tuple[Offer, ...]
    calls: tuple[Planned, ...]
    opening: str
    """The model's text before its calls."""
    closing: str
    """The beginning of its last text, which is followed by the results."""

    @classmethod
    def new(cls, kind: str) -> "Task":
        """Return a new task of one of the `KINDS`."""
        offers = (
            Offer.new("string", "integer", "boolean", "array"),
            Offer.new("object", "number"),
            Offer.new(),
        )
        called = {"one": offers[:1], "two": offers[:2], "twice": (offers[1], offers[1]), "bare": offers[2:]}[kind]
        calls = tuple(Planned.of(offer) for offer in called)
        return cls(
            f"model-{word()}", f"You are {word()}.", f"Find {word()}.", offers, calls,
            "" if kind == "bare" else f"Let me look up {word()} <b> & 🌡\x85\u2028\u2029.", f"Found {word()}:",
        )  # fmt: skip

    @property
    def final(self) -> str:
        """Return the model's last text if all results reach it."""
        return self.answer([call.result for call in self.calls])

    def answer(self, results: list[str]) -> str:
        return f"{self.closing} {' | '.join(results)}"

    def result(self, name: str, arguments: Any) -> str:
        """Return the result of the client's tool for this call. Raises AssertionError for an unplanned call."""
        found = [call.result for call in self.calls if (call.name, call.arguments) == (name, arguments)]
        assert found, f"{name}({arguments!r}) is not among {self.calls}"
        return found[0]

    @property
    def names(self) -> list[str]:
        return [offer.name for offer in self.offers]

    @property
    def written(self) -> str:
        """Return the model's first reply."""
        calls = [json.dumps({"name": c.name, "arguments": c.arguments}, ensure_ascii=False) for c in self.calls]
        opening = [self.opening] if self.opening else []
        return "\n".join([*opening, *(f"<tool_call>\n{call}\n</tool_call>" for call in calls)])


@frozen
class Outcome:
    """A client's view of a task, in its own terms."""

    calls: list[tuple[str, str, Any]]
    """Id, name and decoded arguments."""
    texts: list[str | None]
    """Text of each turn; None or empty for a turn without text."""
    reasons: list[str | None]
    """Finish reason of each turn."""
    pieces: int = 2
    """Number of deltas of the arguments, if streamed and if the client reports it."""


@frozen
class Model:
    """The upstream: an ASGI app that speaks Chat Completions and plays its tasks."""

    _tasks: dict[str, Task] = field(factory=dict)
    app: ScriptedUpstream = field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "app", ScriptedUpstream(self._reply))

    def task(self, kind: str) -> Task:
        """Return a new task, which this model will play under the task's name."""
        task = Task.new(kind)
        self._tasks[task.model] = task
        return task

    def prompts(self, task: Task) -> list[list[Any]]:
        """Return the messages of each request of the task."""
        return [request.json["messages"] for request in self.app.requests if request.json["model"] == task.model]

    def _reply(self, request: Recorded) -> Script:
        body = request.json
        task = self._tasks[body["model"]]
        prompt = "\n\n".join(_text(message) for message in body["messages"])
        if "tools" in body or "tool_choice" in body:
            return status(400, f"this model knows no tools: {body}")
        if missing := [offer.name for offer in task.offers if offer.name not in prompt]:
            return status(400, f"the prompt does not name {missing}: {prompt}")
        results = [found[2] for found in _RESULT.finditer(_text(body["messages"][-1])) if found[1] in task.names]
        return text(task.answer(results) if results else task.written, size=DELTA, usage=USAGE)

    def check(self, task: Task, outcome: Outcome, *, calls: str | None, end: str | None) -> None:
        """Check everything that must be true after the loop; `calls` and `end` are the finish reasons of the two
        turns.
        """
        assert outcome.reasons == [calls, end]
        assert [said or "" for said in outcome.texts] == [task.opening, task.final]
        assert [(name, arguments) for _, name, arguments in outcome.calls] == [
            (call.name, call.arguments) for call in task.calls
        ]
        ids = [id for id, _, _ in outcome.calls]
        assert len(set(ids)) == len(ids)
        assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,40}", id) for id in ids)
        assert outcome.pieces > (1 if any(call.arguments for call in task.calls) else 0)
        prompts = self.prompts(task)
        assert len(prompts) == 2, "one request per turn"
        first, second = prompts
        assert [message["role"] for message in first] == ["system", "user"]
        assert _text(first[0]).startswith(task.system)
        assert task.question in _text(first[1])
        assert second[: len(first)] == first, "the prompt is not a prefix of the next one"
        assert [message["role"] for message in second[len(first) :]] == ["assistant", "user"]
        said, found = parse(_text(second[-2]), task.names)
        assert said.strip() == task.opening
        assert [(call.name, json.loads(call.arguments)) for call in found] == [
            (call.name, call.arguments) for call in task.calls
        ]


def _text(message: Any) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)
