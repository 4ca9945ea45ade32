"""The modules imported by mlx-lm; and mlx-lm's own marker search and formatter, where it is installed."""

import importlib
import json

import pytest
from attrs import evolve
from support.engine_cases import CASES, alone, openai_tools, pieces_of
from support.sweeps import each

from conformance.cases import TOOLS
from statemachine import Call, write
from streamtool.adapters import mlx_lm

FORMATS = [name.removeprefix("streamtool_") for name in mlx_lm.NAMES]
WEATHER = Call("get_weather", '{"city": "Paris", "days": 3}')
ANY = CASES[0]


def module_of(form):
    return importlib.import_module(f"mlx_lm.tool_parsers.streamtool_{form}")


def between(form, text):
    """Return the text between the markers of a format."""
    module = module_of(form)
    _, start, rest = text.partition(module.tool_call_start)
    assert start
    return rest.partition(module.tool_call_end)[0]


@each("form", FORMATS)
def test_a_written_call_is_read_between_its_markers(form):
    tools = openai_tools(evolve(ANY, tools=TOOLS))
    call = module_of(form).parse_tool_call(between(form, write([WEATHER], form)), tools)
    assert (call.pop("name"), call.pop("arguments")) == ("get_weather", {"city": "Paris", "days": 3})
    assert set(call) <= {"id"}


def test_several_calls_between_two_markers_are_a_list():
    calls = [WEATHER, Call("ping", "{}")]
    found = module_of("mistral").parse_tool_call(between("mistral", write(calls, "mistral")))
    assert [call["name"] for call in found] == ["get_weather", "ping"]


@pytest.mark.parametrize("text", ["", "\nHi\n", '\n{"name": "pong", "arguments": {}}\n', '\n{"name": "ping", "argum'])
def test_text_without_a_complete_call_is_a_value_error(text):
    with pytest.raises(ValueError, match="no complete call"):
        module_of("tool_call").parse_tool_call(text, openai_tools(evolve(ANY, tools=["ping"])))


@pytest.mark.engines
def test_the_cases_through_the_server_of_mlx_lm():
    """Use its own marker search, on random pieces. The known differences are listed on the page about adapters."""
    pytest.importorskip("mlx.core", exc_type=ImportError)
    state_machine = importlib.import_module("mlx_lm.generate").TextStateMachine
    formatter = importlib.import_module("mlx_lm.server").ToolCallFormatter
    with_calls = [case for case in CASES if case.format in FORMATS and alone(case).calls]
    cases = [case for case in with_calls if all(event.get("complete", True) for event in case.events)]
    same = [case for case in cases if through(case, state_machine, formatter) == [*expected(case)]]
    print(f"{len(same)} of {len(cases)}")
    assert len(same) > len(cases) * 0.7, sorted({case.id for case in cases} - {case.id for case in same})


def expected(case):
    for name, arguments in alone(case).calls:
        yield name, json.loads(arguments)


def through(case, state_machine, formatter):
    """Return the calls that mlx-lm's server reads from a reply."""
    module = module_of(case.format)
    edges = {"normal": [(module.tool_call_start, "tool")], "tool": [(module.tool_call_end, "normal")]}
    state, last, texts, open_text = state_machine(edges).make_state("normal"), "normal", [], ""
    for piece in pieces_of(case):
        state, segments = state_machine.split(state, piece)
        for name, text in segments:
            if name == "tool":
                open_text += text
            elif last == "tool":
                texts.append(open_text)
                open_text = ""
            last = name
    found = formatter(module.parse_tool_call, openai_tools(case))([*texts, *([open_text] if open_text else [])])
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in found]
