"""What models really write where keys are marked and values are raw: in every format that is written so.

Each text is made by `write`, then spoiled as models spoil it; it is read whole, character by character, and cut in two
at every place.
"""

import json

import pytest
from statemachine_fold import FoldedCall, calls_of, outcome

from statemachine import FORMATS, Call, write
from statemachine.formats.format import Parameters
from statemachine.formats.markers import spelled

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
KEYED = {name for name, body in BODIES.items() if "{key}" in body.close}
every_format = pytest.mark.parametrize("name", BODIES)
without_keyed = pytest.mark.parametrize("name", [name for name in BODIES if name not in KEYED])


def call(name: str, tool: str, **arguments: object) -> str:
    """One call as the format writes it."""
    return write([Call(tool, json.dumps(arguments))], name)


def closer(name: str) -> str:
    """The closer of a value."""
    return spelled(BODIES[name].close)


def read(name: str, text: str) -> FoldedCall:
    """The one call of a text, which must be the same at every cut."""
    options = {"formats": [name]}
    whole = outcome([text], TOOLS, None, **options)
    assert outcome(text, TOOLS, None, **options) == whole, "character by character"
    for at in range(1, len(text)):
        assert outcome([text[:at], text[at:]], TOOLS, None, **options) == whole, f"cut at {at}"
    (found,) = calls_of(whole)
    return found


@every_format
def test_a_key_behind_a_closer_is_a_key_whether_it_is_declared_or_not(name: str) -> None:
    found = read(name, call(name, "shell", command="echo hi", description="Says hi", timeout=5, Reason="why"))
    assert found.arguments == '{"command": "echo hi", "description": "Says hi", "timeout": 5, "Reason": "why"}'
    assert found.complete
    assert found.repairs == ("undeclared_key",)


@every_format
def test_of_a_key_that_is_given_twice_the_last_one_wins(name: str) -> None:
    found = read(name, call(name, "shell", command="one", commanD="two").replace("commanD", "command"))
    assert json.loads(found.arguments) == {"command": "two"}
    assert found.complete
    assert found.repairs == ("repeated_key",)


@every_format
@pytest.mark.parametrize("around", ["{}", "Write\n{}\nto call it.\n", "# One\n{0}\n# Two\n{0}"])
def test_a_whole_call_in_a_value_comes_out_as_it_stands(name: str, around: str) -> None:
    shown = around.format(call(name, "write", path="a", content="b"))
    found = read(name, call(name, "write", content=shown, path="c.md"))
    assert json.loads(found.arguments) == {"content": shown, "path": "c.md"}
    assert found.complete
    assert found.repairs == ()


@every_format
def test_a_call_in_a_call_in_a_value(name: str) -> None:
    shown = call(name, "write", path="a", content=call(name, "write", path="b", content="c"))
    found = read(name, call(name, "write", content=shown, path="d"))
    assert json.loads(found.arguments) == {"content": shown, "path": "d"}
    assert found.complete


@without_keyed
def test_a_closer_too_many_is_mended(name: str) -> None:
    text = call(name, "shell", command="ls", timeout=1).replace(closer(name), f"{closer(name)}\n{closer(name)}")
    found = read(name, text)
    assert json.loads(found.arguments) == {"command": "ls", "timeout": 1}
    assert found.complete
    assert found.repairs == ("surplus_closer",)


@every_format
def test_a_closer_too_few_is_mended(name: str) -> None:
    text = call(name, "write", path="a", content="b")
    first = closer(name).replace("{key}", "path")
    found = read(name, text.replace(first, "", 1))
    assert json.loads(found.arguments)["content"] == "b"
    assert json.loads(found.arguments)["path"].strip() == "a"
    assert found.repairs == ("missing_closer",)


@every_format
def test_a_closer_with_a_second_bracket_is_mended(name: str) -> None:
    form, text = FORMATS[name], call(name, "shell", command="ls", timeout=1)
    if not closer(name).endswith(">"):
        pytest.skip("its closers end in something else")
    end = closer(name).replace("{key}", "command")
    found = read(name, text.replace(end, f"{end}>", 1))
    assert json.loads(found.arguments) == {"command": "ls", "timeout": 1}
    assert found.complete
    assert found.repairs == ("surplus_closer",)
    if form.close:
        end = form.close.replace("{tool}", "shell").replace("{ns}", "").replace("{:}", "")
        assert json.loads(read(name, text.replace(end, f"{end}>", 1)).arguments) == {"command": "ls", "timeout": 1}


@without_keyed
def test_what_swallowed_its_own_markup_is_not_complete(name: str) -> None:
    """A value without a closer, then a key that is not declared: nobody can know what was meant.

    Where a key is a tag of its own, a tag that is not declared is text like any other.
    """
    text = call(name, "shell", command="ls", extra="x")
    end = closer(name).replace("{key}", "command")
    found = read(name, text.replace(end, "", 1))
    assert not (found.complete and end.removesuffix("command>") in found.arguments)
