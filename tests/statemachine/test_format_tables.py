"""The table of formats is pure data, unambiguous, and has no unused rows."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest

from statemachine import FORMATS, OPT_IN, Parser, formats, precompile
from statemachine.formats import DEFAULT, REASONING
from statemachine.formats.compile import tables_of
from statemachine.formats.format import (
    Anchor,
    Envelope,
    Format,
    FormatError,
    JsonBody,
    NameRule,
    Parameters,
    Variant,
    check_formats,
)

TAUGHT = {
    *("tool_call", "labelled", "invoke", "fenced", "object", "openai_fragment", "command", "action_object", "react"),
    *("qwen3_coder", "mistral"),
}


def test_the_table_has_the_expected_formats() -> None:
    assert set(FORMATS) >= TAUGHT
    assert set(FORMATS) >= OPT_IN
    assert set(DEFAULT) == set(FORMATS) - OPT_IN
    assert "action_object" in OPT_IN
    assert all(name == form.name for name, form in FORMATS.items())


def test_the_table_contains_no_functions() -> None:
    """Neither its module nor its rows contain functions."""
    tree = ast.parse(Path(inspect.getfile(formats)).read_text("utf-8"))
    assert not [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef)
    ]

    def plain(value: object) -> bool:
        if attrs.has(type(value)):
            return all(plain(getattr(value, field.name)) for field in attrs.fields(type(value)))
        if isinstance(value, tuple | frozenset):
            return all(map(plain, value))
        return value is None or isinstance(value, str | bool | int | Anchor)

    assert all(plain(form) for form in FORMATS.values())


def test_the_table_is_immutable() -> None:
    with pytest.raises(TypeError):
        FORMATS["x"] = FORMATS["object"]  # type: ignore[index]
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        FORMATS["object"].name = "x"  # type: ignore[misc]


def some(every: int) -> list[Any]:
    """Return the formats as parameters, all but each `every`-th marked long, since each set of formats has to be
    compiled.
    """
    return [
        pytest.param(name, marks=[pytest.mark.long] if number % every else [])
        for number, name in enumerate(sorted(FORMATS))
    ]


@pytest.mark.parametrize("name", some(3))
def test_each_format_works_with_others(name: str) -> None:
    names = sorted(FORMATS)
    at = names.index(name)
    for other in (names[at - 1], names[at - 7]):
        Parser(["f"], formats=[name, other]).feed("text <{[\n@")


@pytest.mark.parametrize("name", some(18))
def test_all_formats_but_one_work_together(name: str) -> None:
    Parser(["f"], formats=[other for other in FORMATS if other != name]).feed("text <{[\n@")


def test_the_order_of_formats_does_not_affect_parsing() -> None:
    from statemachine import Call, parse, write

    names = tuple(FORMATS)
    for order in (names, names[::-1], names[5:] + names[:5]):
        for form in FORMATS:
            text, calls = parse(write([Call("f", '{"a": 1}')], form), {"f": {}}, formats=order)
            assert text == ""
            assert [call.arguments for call in calls] == ['{"a": 1}']


def test_tables_are_shared_between_parsers() -> None:
    precompile()
    known = tables_of.cache_info().misses
    assert Parser(["f"])._machine.tables is Parser({"g": {}})._machine.tables
    assert tables_of.cache_info().misses == known


LOADED = """
import sys
from statemachine import FORMATS, Call, parse, precompile, write
calls = [write([Call("f", '{"a": 1}')], form) for form in FORMATS]
precompile()
known = set(sys.modules)
print([parse(call, ["f"])[1] for call in calls if not parse(call, ["f"])[0]] != [], set(sys.modules) - known)
"""


def test_after_precompiling_no_reply_loads_a_module() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert done.stdout == "True set()\n"


def test_reasoning_spans() -> None:
    spans = {*REASONING, *(span for form in FORMATS.values() for span in form.sections)}
    assert {span.open: span.close for span in spans if not span.text} == {
        "<think>": "</think>",
        "<thinking>": "</thinking>",
        "<seed:think>": "</seed:think>",
        "<mm:think>": "</mm:think>",
        "<longcat_think>": "</longcat_think>",
        "<|START_THINKING|>": "<|END_THINKING|>",
        "[THINK]": "[/THINK]",
        "<|channel>thought": "<channel|>",
        "<|channel>{*}<|channel>thought": "<channel|>",
        "<|content_thinking|>": "<|end_message|>",
        "<|message_model|>{*}<|content_thinking|>": "<|end_message|>",
        "<|think|>": "<|end|>",
        "<|begin|>assistant{*}<|think|>": "<|end|>",
        "<|open|>think<|sep|>": "<|close|>think<|sep|>",
        "<|think:start|>": "<|think:end|>",
        "[unused16]": "[unused17]",
        "<|plamo:begin_think:plamo|>": "<|plamo:end_think:plamo|>",
        "<ifm|think>": "</ifm|think>",
        "<ifm|think_fast>": "</ifm|think_fast>",
        "<ifm|think_faster>": "</ifm|think_faster>",
        "Here are my reasoning steps:\n": "[BEGIN FINAL RESPONSE]",
    }


NAME_RULE = NameRule(ends=(">",))
WRONG = {
    "no variant": (Format("a", variants=(), openers=("<a>",)), "at least one variant"),
    "an envelope with a name rule": (
        Format("a", variants=(Variant(Envelope(), NAME_RULE),), openers=("<a>",)),
        "name_rule",
    ),
    "a body without a name rule": (Format("a", variants=(Variant(JsonBody()),), openers=("<a>",)), "name_rule"),
    "a name rule without an opener": (Format("a", variants=(Variant(JsonBody(), NAME_RULE),)), "opener"),
    "the wrong key": (Format("b", variants=(Variant(Envelope()),), openers=("<a>",)), "b"),
}


@pytest.mark.parametrize(("form", "word"), WRONG.values(), ids=WRONG)
def test_an_invalid_declaration_is_rejected(form: Format, word: str) -> None:
    with pytest.raises(FormatError, match=word):
        check_formats({"a": form})


def test_indistinguishable_formats_are_rejected() -> None:
    one = Format("a", variants=(Variant(Envelope()),), openers=("<x>",))
    two = Format("b", variants=(Variant(Envelope()),), openers=("<x>",))
    with pytest.raises(FormatError, match="<x>"):
        check_formats({"a": one, "b": two})


def test_one_opener_may_lead_to_several_bodies() -> None:
    one = Format("a", variants=(Variant(Envelope()),), openers=("<x>",))
    two = Format(
        "b", variants=(Variant(Parameters(key="<k=", key_rule=NAME_RULE, close="</k>"), NAME_RULE),), openers=("<x>",)
    )
    check_formats({"a": one, "b": two})


def test_an_opener_that_is_a_prefix_of_another_is_rejected() -> None:
    """Otherwise the result would depend on how the text is split."""
    one = Format("a", variants=(Variant(Envelope()),), openers=("<x",))
    two = Format("b", variants=(Variant(Envelope()),), openers=("<xy",))
    with pytest.raises((FormatError, ValueError)):
        check_formats({"a": one, "b": two})


def test_every_format_is_documented_in_its_file() -> None:
    folder = Path(__file__).parent.parent / "formats"
    for name in FORMATS:
        assert (folder / f"{name}.md").read_text("utf-8").startswith(f"# {name}\n")
