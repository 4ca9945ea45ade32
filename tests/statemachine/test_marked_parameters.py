"""Realistic model output in every format with marked keys and raw values.

Each text is made by `write` and then damaged as models damage it; it is read whole, character by character, and split
in two at some places; at every place with `-m long`.
"""

import json
import random
from collections.abc import Callable
from functools import partial

import pytest
from support.statemachine_fold import FoldedCall, calls_of, outcome
from support.sweeps import each

from statemachine import FORMATS, Call, write
from statemachine.formats.format import Parameters
from statemachine.formats.markers import spell

STRING = {"type": "string"}
TOOLS = {
    "shell": {"type": "object", "properties": {"command": STRING, "timeout": {"type": "integer"}}},
    "write": {"type": "object", "properties": {"path": STRING, "content": STRING}},
}
BODIES = {
    name: next(variant.body for variant in form.variants if isinstance(variant.body, Parameters))
    for name, form in FORMATS.items()
    if any(isinstance(variant.body, Parameters) for variant in form.variants[:1])
}
SPLITS = 12
"""At so many places a text is cut in two."""
KEYED = {name for name, body in BODIES.items() if "{key}" in body.close}
every_format = each("name", BODIES)
without_keyed = each("name", [name for name in BODIES if name not in KEYED])


def call(name: str, tool: str, **arguments: object) -> str:
    """Return one call as the format writes it."""
    return write([Call(tool, json.dumps(arguments))], name)


def closer(name: str) -> str:
    """Return the closer of a value."""
    return spell(BODIES[name].close)


Read = Callable[[str, str], FoldedCall]


@pytest.fixture(params=[SPLITS, pytest.param(None, marks=pytest.mark.long)], ids=["some splits", "every split"])
def read(request: pytest.FixtureRequest) -> Read:
    """Return the one call of a text, which must be the same at each cut."""
    return partial(read_cut, request.param)


def read_cut(splits: int | None, name: str, text: str) -> FoldedCall:
    options = {"formats": [name]}
    whole = outcome([text], TOOLS, None, **options)
    assert outcome(text, TOOLS, None, **options) == whole, "character by character"
    places = range(1, len(text))
    for at in places if splits is None else random.Random(text).sample(places, min(splits, len(places))):
        assert outcome([text[:at], text[at:]], TOOLS, None, **options) == whole, f"cut at {at}"
    (found,) = calls_of(whole)
    return found


@every_format
def test_a_key_after_a_closer_is_a_key_even_if_undeclared(read: Read, name: str) -> None:
    found = read(name, call(name, "shell", command="echo hi", description="Says hi", timeout=5, Reason="why"))
    assert found.arguments == '{"command": "echo hi", "description": "Says hi", "timeout": 5, "Reason": "why"}'
    assert found.complete
    assert found.repairs == ("undeclared_key",)


@every_format
def test_the_last_value_of_a_repeated_key_wins(read: Read, name: str) -> None:
    found = read(name, call(name, "shell", command="one", commanD="two").replace("commanD", "command"))
    assert json.loads(found.arguments) == {"command": "two"}
    assert found.complete
    assert found.repairs == ("repeated_key",)


@every_format
@each("around", ["{}", "Write\n{}\nto call it.\n", "# One\n{0}\n# Two\n{0}"])
def test_a_complete_call_in_a_value_is_unchanged(read: Read, name: str, around: str) -> None:
    shown = around.format(call(name, "write", path="a", content="b"))
    found = read(name, call(name, "write", content=shown, path="c.md"))
    assert json.loads(found.arguments) == {"content": shown, "path": "c.md"}
    assert found.complete
    assert found.repairs == ()


@every_format
def test_a_call_nested_in_a_call_in_a_value(read: Read, name: str) -> None:
    if name == "continue":  # nothing distinguishes the fence that closes a call from another one
        return
    shown = call(name, "write", path="a", content=call(name, "write", path="b", content="c"))
    found = read(name, call(name, "write", content=shown, path="d"))
    assert json.loads(found.arguments) == {"content": shown, "path": "d"}
    assert found.complete


@without_keyed
def test_a_surplus_closer_is_repaired(read: Read, name: str) -> None:
    text = call(name, "shell", command="ls", timeout=1).replace(closer(name), f"{closer(name)}\n{closer(name)}")
    found = read(name, text)
    assert json.loads(found.arguments) == {"command": "ls", "timeout": 1}
    assert found.complete
    assert found.repairs == ("surplus_closer",)


@every_format
def test_a_missing_closer_is_repaired(read: Read, name: str) -> None:
    text = call(name, "write", path="a", content="b")
    first = closer(name).replace("{key}", "path")
    found = read(name, text.replace(first, "", 1))
    assert json.loads(found.arguments)["content"] == "b"
    assert json.loads(found.arguments)["path"].strip() == "a"
    assert found.repairs == ("missing_closer",)


@every_format
def test_a_closer_with_an_extra_bracket_is_repaired(read: Read, name: str) -> None:
    form, text = FORMATS[name], call(name, "shell", command="ls", timeout=1)
    if not closer(name).endswith(">"):
        return  # its closers do not end in a bracket
    end = closer(name).replace("{key}", "command")
    found = read(name, text.replace(end, f"{end}>", 1))
    assert json.loads(found.arguments) == {"command": "ls", "timeout": 1}
    assert found.complete
    assert found.repairs == ("surplus_closer",)
    if form.close:
        end = form.close.replace("{tool}", "shell").replace("{ns}", "").replace("{:}", "")
        assert json.loads(read(name, text.replace(end, f"{end}>", 1)).arguments) == {"command": "ls", "timeout": 1}


@without_keyed
def test_a_call_that_swallowed_its_own_markup_is_incomplete(read: Read, name: str) -> None:
    """A value without a closer, followed by an undeclared key, is ambiguous.

    In formats whose keys are tags, an undeclared tag is ordinary text.
    """
    text = call(name, "shell", command="ls", extra="x")
    end = closer(name).replace("{key}", "command")
    found = read(name, text.replace(end, "", 1))
    assert not (found.complete and end.removesuffix("command>") in found.arguments)


@each("name", sorted(KEYED))
@each("key", ["i", "in", "p", "para", "t", "arg", "f"])
def test_a_parameter_whose_name_is_the_beginning_of_a_marker(name: str, key: str) -> None:
    """A value may contain a marker or a tag that begins like the parameter's own, such as `<invoke` for `i`."""
    tools = {"write": {"type": "object", "properties": {"path": STRING, key: STRING}}}
    arguments = {"path": "a <b>b</b>", key: "c <index>d</index> e"}
    text = call(name, "write", **arguments)
    whole = outcome([text], tools, None, formats=[name])
    assert outcome(text, tools, None, formats=[name]) == whole
    [found] = calls_of(whole)
    assert json.loads(found.arguments) == arguments
