"""Every row of the transition table matters: these texts reach all rows, and each changed target is detected."""

from collections.abc import Iterator
from typing import Any

import pytest
from attrs import frozen
from support.strategies import SOUP_TOOLS

from statemachine import FORMATS, Parser, State
from statemachine.machine.frames import Frames
from statemachine.machine.states import POP, TRANSITIONS, Input, Move, push, replace, rows, targets

EVERYTHING = {"formats": [*FORMATS], "calls_in_reasoning": True, "malformed": "discard"}
CALL = '<tool_call>{"name": "ping", "arguments": {}}</tool_call>'
SAID = (
    "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b <tool_call><|end|><|start|>"
)
TEXTS: list[tuple[str, dict[str, Any]]] = [
    (f"a {CALL}\n\nb {CALL}", {}),
    ('a {"b": [1, "c"]} <tool_call>{"name": "nope", "arguments": {}}</tool_call> d', {}),
    ('{"b": 1', {}),
    ('{"id": "x", "b": {"tool": "ping", "arguments": {}}} c', {}),
    ('{"arguments": {"a": 1}, "b": {"tool": "ping", "arguments": {}}} c', {}),
    ('<think>a {"arguments": {"a": 1}, "b": 1} c</think>', EVERYTHING),
    (f"```\n<|tool_call_start|>[ping() oops\n```\n{CALL}", {}),
    (f"```\n<|start|>assistant to=functions.ping <|message|>{CALL}\n```\nb", EVERYTHING),
    ('a <tool_call>{"name": "nope", "arguments": {"a" </tool_call> b', {}),
    (f"<think>a {CALL} b</think>c", {}),
    (f'<think>a <tool_call>{{"name": "nope", "arguments": {{"a" oops {CALL}', EVERYTHING),
    (f"<think><|tool_call_start|>[ping() oops {CALL}", EVERYTHING),
    (f"<think><|start|>assistant to=functions.ping <|message|>{CALL} a <|call|>b", EVERYTHING),
    (f"<think>a {CALL} b", {}),
    (f'<think>a\n```py\nx\n```\nb\n{{"c": 1}} {CALL}\n</think>d', EVERYTHING),
    (f"<think>a\n```js\n{CALL}\n```\nb </think>c", EVERYTHING),
    ("<think><function_calls><invoke name='ping'></invoke> a </function_calls>\n b</think> c", EVERYTHING),
    ("<function_calls><invoke name='ping'></invoke> a </function_calls>\n\nb", EVERYTHING),
    ("<function_calls><invoke name='ping'></invoke></function_calls>\n", EVERYTHING),
    (f"a\n```py\nx\n```\nb\n```json\n{CALL}\n```\nc\n```\n<tool_call>x {CALL}\n```\n{CALL}", {}),
    (f"```py\nx {CALL}", {}),
    ('a <tool_call>{"name": "ping", "argu', {}),
    ('a <tool_call>{"na', {}),
    (f"a <tool_call>x</tool_call> {CALL}", {}),
    (f'a <tool_call>{{"name": x}}</tool_call> {CALL}', {"malformed": "discard"}),
    (f'a <tool_call>{{"name": "ping", "arguments": {{"a" oops</tool_call> {CALL}', {}),
    ('a <tool_call>{"name": "ping", "arguments": {"a" oops', {}),
    ('a <tool_call>{"name": "nope", "arguments": {"a": 1', {}),
    (f'a <tool_call>{{"name": "nope", "arguments": {{"a" oops {CALL}', {}),
    ('<tool_call>{"name": "ping", "arguments": {"a": 1', {}),
    ('<tool_call>[{"name": "ping"}, {"name": "f", "arguments": {"a": 1}}]</tool_call>', {}),
    (f"<|tool_call_start|>[ping() oops {CALL}", {}),
    ('{"final": {"content": [1]}} more', {"formats": ["action_object"]}),
    (
        f"{SAID}<|channel|>commentary to=functions.ping <|message|>{{}}<|call|>",
        {"formats": ["harmony", "tool_call"]},
    ),
    ("<|channel|>final<|message|>b", {"formats": ["harmony"]}),
    (f">>>ping\n{CALL}\n>>>all\nb", {"formats": ["functionary", "tool_call"]}),
    (f"<|start|>assistant<|channel|>commentary to=functions.ping <|message|>{CALL} a <|call|>b", EVERYTHING),
    ("a<|im_end|>\n<|im_start|>user\nb", {}),
    ("<think>a<|im_end|>\n<|im_start|>user\nb", {}),
]


SAME = {(State.MESSAGE, Input.END): replace(State.TEXT)}
"""Mutations without effect: a message that is text is never inside reasoning, so only the reply's text is beneath
it.
"""


@frozen
class Outcome:
    """The events of each piece of a text and the state after it, or the exception raised."""

    pieces: tuple[object, ...]


def outcome(text: str, options: dict[str, Any]) -> Outcome:
    """Return the outcome of a text, character by character."""
    pieces: list[object] = []
    try:
        parser = Parser(SOUP_TOOLS, **options)
        for char in text:
            pieces += [*map(repr, parser.feed(char)), parser.state]
        pieces += [*map(repr, parser.close()), parser.state]
    except Exception as error:  # a wrong table may break anything
        pieces.append(repr(error))
    return Outcome(tuple(pieces))


def reached(text: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> set[tuple[State, Input]]:
    """Return the rows that a text reaches."""
    found: set[tuple[State, Input]] = set()
    go = Frames.apply

    def noted(frames: Frames, way: Input, *closers: str, **given: Any) -> None:
        found.add((frames.state, way))
        go(frames, way, *closers, **given)

    with monkeypatch.context() as patched:
        patched.setattr(Frames, "apply", noted)
        outcome(text, options)
    return found


@pytest.fixture(scope="module")
def texts() -> dict[tuple[State, Input], list[tuple[str, dict[str, Any]]]]:
    """Return the texts that reach each row."""
    by_row: dict[tuple[State, Input], list[tuple[str, dict[str, Any]]]] = {}
    with pytest.MonkeyPatch.context() as monkeypatch:
        for text, options in TEXTS:
            for row in reached(text, options, monkeypatch):
                by_row.setdefault(row, []).append((text, options))
    return by_row


def changes(state: State, found: Input, move: Move) -> Iterator[Move]:
    """Return the mutated moves, each with another target."""
    for other in (
        {*State} - targets(state, found) if move.push is not None or len(targets(state, found)) == 1 else State
    ):
        yield replace(other) if move.pop else push(other)
    if move.push is not None:
        yield POP


ROWS = [(state, found, move) for state, found, move in rows()]


def test_every_row_is_reached(texts: dict[tuple[State, Input], list[tuple[str, dict[str, Any]]]]) -> None:
    assert {(state, found) for state, found, _ in ROWS} == set(texts)


@pytest.mark.parametrize(("state", "found", "move"), ROWS, ids=[f"{state.value}-{i.name}" for state, i, _ in ROWS])
def test_each_mutation_of_a_row_is_detected(
    state: State,
    found: Input,
    move: Move,
    texts: dict[tuple[State, Input], list[tuple[str, dict[str, Any]]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = [outcome(text, options) for text, options in texts[state, found]]
    for change in changes(state, found, move):
        if SAME.get((state, found)) == change:
            continue
        monkeypatch.setitem(TRANSITIONS[state], found, change)  # type: ignore[arg-type]
        assert any(
            outcome(text, options) != was for (text, options), was in zip(texts[state, found], before, strict=True)
        ), f"{change} is not detected"
