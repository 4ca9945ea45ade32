"""Users of other systems keep their conventions with the settings shown in docs/recipes.md.

Each test reads its settings from that page. The expected values are taken from those systems' own documentation,
message by message; intended differences are noted in the tests.
"""

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from support.dialects import read, said
from support.sweeps import each

from streamtool.exchange.record import Record
from streamtool.middleware import ToolMiddleware
from streamtool.settings import Settings, load
from streamtool.testing import Script, ScriptedUpstream, stream_asgi

PAGE = (Path(__file__).parent.parent.parent / "docs" / "recipes.md").read_text(encoding="utf-8")
PATH = "/v1/chat/completions"

both = pytest.mark.anyio
streamed = each("stream", [True, False], ids=["streamed", "whole"])


def settings_of(heading: str) -> Settings:
    """Return the settings below a heading of the page."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = re.search(r"^```toml\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert found, heading
    return load(found[1], {})


DOAI = settings_of("Coming from DOAI Proxy")
PRINT = settings_of("Coming from a proxy around a command-line agent")
WINDLASS = settings_of("Coming from Windlass")


def function(name: str, about: str = "", **properties: Any) -> Any:
    required = [key for key, schema in properties.items() if "default" not in schema]
    schema = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}


STRING = {"type": "string"}
WEATHER = function("get_weather", "Get current weather for a location", location=STRING)
USER = {"role": "user", "content": "And in Tokyo?"}


def calling(*calls: tuple[str, str, str], content: Any = None) -> Any:
    made = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls]
    return {"role": "assistant", "content": content, "tool_calls": made}


def result(id: str, content: Any) -> Any:
    return {"role": "tool", "tool_call_id": id, "content": content}


class Place:
    """An app with the middleware and these settings."""

    def __init__(self, settings: Settings, *replies: str | Script) -> None:
        self.upstream = ScriptedUpstream(*(said("chat", one) if isinstance(one, str) else one for one in replies))
        self.records: list[Record] = []
        self.app = ToolMiddleware(self.upstream, settings=settings, on_exchange=self.records.append)

    async def ask(
        self, *messages: Any, tools: Any = (WEATHER,), stream: bool = True, status: int = 200, **fields: Any
    ) -> Any:
        body = {"model": "m", "messages": list(messages), "tools": list(tools), "stream": stream, **fields}
        async with stream_asgi(self.app, PATH, body=json.dumps(body).encode()) as reply:
            data = await reply.body()
        assert reply.status == status, data
        return read("chat", data, stream=stream)

    @property
    def sent(self) -> Any:
        """Last request to the model."""
        return self.upstream.requests[-1].json


async def prompt(settings: Settings, *messages: Any, **fields: Any) -> list[Any]:
    """Messages that the model reads."""
    place = Place(settings, "Fine.")
    await place.ask(*messages, **fields)
    return list(place.sent["messages"])


# --- DOAI Proxy: how messages are normalised
# ---------------------------------------------------------------------------

NORMALISED = {
    "an array of parts is one text": (
        [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is this?"},
                    {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
                    {"type": "text", "text": "And that?"},
                ],
            }
        ],
        [{"role": "user", "content": "What is this?\n[image]\nAnd that?"}],
    ),
    "reminders are stripped": (
        [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "<system-reminder>\nBe kind.\n</system-reminder>"},
                    {"type": "text", "text": "Go on.<system-reminder>x</system-reminder>"},
                ],
            }
        ],
        [{"role": "user", "content": "Go on."}],
    ),
    "calls are labelled text, results are the user's": (
        [calling(("c1", "get_weather", '{"location":"Tokyo"}')), result("c1", "rain"), USER],
        [
            {"role": "assistant", "content": 'TOOL_CALL: get_weather\nARGUMENTS: {"location":"Tokyo"}'},
            {"role": "user", "content": "[Tool Result]: rain"},
            USER,
        ],
    ),
    "results of several calls": (
        [
            calling(("c1", "get_weather", '{"location":"Tokyo"}'), ("c2", "get_weather", '{"location":"Rome"}')),
            result("c2", "sun"),
            result("c1", [{"type": "text", "text": "rain"}]),
            USER,
        ],
        [
            {
                "role": "assistant",
                "content": 'TOOL_CALL: get_weather\nARGUMENTS: {"location":"Tokyo"}\n'
                'TOOL_CALL: get_weather\nARGUMENTS: {"location":"Rome"}',
            },
            {"role": "user", "content": "[Tool Result]: rain\n\n[Tool Result]: sun"},
            USER,
        ],
    ),
    "empty assistant messages are dropped": (
        [USER, {"role": "assistant", "content": ""}, {"role": "assistant", "content": None}, USER],
        [USER, USER],
    ),
}


@both
@pytest.mark.parametrize(("messages", "expected"), NORMALISED.values(), ids=NORMALISED)
async def test_messages_are_normalised(messages: list[Any], expected: list[Any]):
    assert (await prompt(DOAI, *messages))[1:] == expected


@both
async def test_results_may_be_dropped():
    dropping = evolve(DOAI, results=evolve(DOAI.results, drop=True))
    messages = [USER, calling(("c1", "get_weather", "{}")), result("c1", "rain")]
    sent = await prompt(dropping, *messages)
    assert sent[-1] == {"role": "user", "content": "[Tool Result]: (result left out)"}  # a gap would look like an error


@both
@pytest.mark.parametrize(
    ("length", "text"),
    [(2000, f"{'x' * 2000}\n[cut: 2000 of 2001 characters are shown]"), (2001, "x" * 2001), (-1, "x" * 2001)],
)
async def test_results_are_truncated_at_the_configured_length(length: int, text: str):
    assert DOAI.results.max_length == 2000
    cutting = evolve(DOAI, results=evolve(DOAI.results, max_length=length))
    messages = [USER, calling(("c1", "get_weather", "{}")), result("c1", "x" * 2001)]
    assert (await prompt(cutting, *messages))[-1]["content"] == f"[Tool Result]: {text}"


PARSERS = {
    "minimax, children": (
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="location">Tokyo</parameter>\n</invoke>\n'
        "</minimax:tool_call>"
    ),
    "minimax, attributes": (
        '<minimax:tool_call>\n<invoke name="get_weather" location="Tokyo"></invoke>\n</minimax:tool_call>'
    ),
    "minimax, one element": '<minimax:tool_call><invoke name="get_weather" location="Tokyo"/></minimax:tool_call>',
    "claude": (
        '<invoke name="get_weather"><parameter_list><parameter name="location">Tokyo</parameter></parameter_list>'
        "</invoke>"
    ),
    "openai": (
        '"tool_calls": [{"id": "call_1234567890", "type": "function", '
        '"function": {"name": "get_weather", "arguments": "{\\"location\\":\\"Tokyo\\"}"}}]'
    ),
    "text": 'TOOL_CALL: get_weather\nARGUMENTS: {"location": "Tokyo"}',
}


@both
@streamed
@pytest.mark.parametrize("written", PARSERS.values(), ids=PARSERS)
async def test_text_for_any_of_its_four_parsers_is_parsed(written: str, stream: bool):
    opening = "I can help you check the weather. Let me get that information for you."
    got = await Place(DOAI, f"{opening}\n{written}").ask(USER, stream=stream)
    text, (name, arguments) = got.parts
    assert (text, name, json.loads(arguments)) == (opening, "get_weather", {"location": "Tokyo"})
    assert got.reason == "calls"


@both
@streamed
async def test_unknown_names_are_filtered(stream: bool):
    known, unknown = PARSERS["text"], PARSERS["text"].replace("get_weather", "get_news")
    place = Place(DOAI, f"So.\n{unknown}\n{known}")
    got = await place.ask(USER, stream=stream)
    assert got.parts == ("So.", ("get_weather", '{"location": "Tokyo"}'))
    assert place.records[0].discarded == (("unknown", len(f"{unknown}\n")),)


@both
async def test_a_request_has_the_instructions_in_its_system_prompt():
    system = {"role": "system", "content": "Be brief."}
    sent = await prompt(DOAI, system, USER)
    assert [message["role"] for message in sent] == ["system", "user"]
    assert sent[0]["content"].startswith("Be brief.\n\n# Tools\n")
    assert 'TOOL_CALL: get_weather\nARGUMENTS: {"location": "some location"}' in sent[0]["content"]


# --- a proxy for a command line
# ----------------------------------------------------------------------------------------


@both
async def test_tools_are_listed_with_their_schemas():
    place = Place(PRINT, "Fine.")
    await place.ask(USER)
    assert "tools" not in place.sent
    [system, user] = place.sent["messages"]
    entry = {"name": "get_weather", "description": "Get current weather for a location"}
    entry["parameters"] = WEATHER["function"]["parameters"]
    assert f"\n{json.dumps(entry)}\n" in system["content"]
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"location": ' in system["content"]
    for rule in (
        "You do not run them yourself: the next message contains the results.",
        "Never mention calls, their form or these rules.",
        "If no tool fits or the task is done, answer in plain text.",
        "Never invent a tool.",
    ):
        assert rule in system["content"]
    assert user == USER


@both
@pytest.mark.parametrize(
    ("choice", "said_of_it"),
    [
        ("auto", ""),
        ("none", "\n\nFor this reply: write no call. Answer without tools."),
        (
            "required",
            "\n\nFor this reply: write at least one call; an answer without a call is not accepted.",
        ),
        (
            {"type": "function", "function": {"name": "get_weather"}},
            "\n\nFor this reply: write one call of the tool `get_weather`, and call no other tool.",
        ),
    ],
    ids=["auto", "none", "required", "named"],
)
async def test_the_tool_choice_is_expressed_in_a_sentence(choice: Any, said_of_it: str):
    place = Place(evolve(PRINT, retries=0), "Fine.")
    await place.ask(USER, tool_choice=choice)
    assert place.sent["messages"][-1]["content"] == f"And in Tokyo?{said_of_it}"


@both
async def test_results_keep_their_ids_and_past_calls_are_written_as_calls():
    messages = [USER, calling(("c1", "get_weather", '{"location": "Tokyo"}'), content="I look."), result("c1", "rain")]
    assert (await prompt(PRINT, *messages))[2:] == [
        {
            "role": "assistant",
            "content": 'I look.\n<tool_call>\n{"name": "get_weather", "arguments": {"location": "Tokyo"}}\n</tool_call>',
        },
        {"role": "user", "content": '<tool_result id="c1">\nrain\n</tool_result>'},
    ]


def block(text: str) -> str:
    return f"<tool_call>\n{text}\n</tool_call>"


TOKYO = '{"location": "Tokyo"}'
WRITTEN = f'{{"name": "get_weather", "arguments": {TOKYO}}}'
DECODED = {
    "one block": (block(WRITTEN), [("get_weather", TOKYO)], ""),
    "several, in order": (
        f"First.\n{block(WRITTEN)}\n{block(WRITTEN.replace('Tokyo', 'Rome'))}",
        [("get_weather", TOKYO), ("get_weather", TOKYO.replace("Tokyo", "Rome"))],
        "First.",
    ),
    "no arguments": (block('{"name": "get_weather"}'), [("get_weather", "{}")], ""),
    "malformed": ("So. " + block('{"name" = get_weather, 5}') + " Done.", [], "So.  Done."),
    "no name": ("So. " + block('{"arguments": {}}') + " Done.", [], "So.  Done."),
    "no end": (f"So.\n<tool_call>\n{WRITTEN}", [("get_weather", TOKYO)], "So."),
    "plain text": ("It rains in <Tokyo>.", [], "It rains in <Tokyo>."),
    "a tool that nobody offered": (
        block('{"name": "mcp_fwbg_list", "arguments": {}}'),
        [("mcp_fwbg_list", "{}")],
        "",
    ),
}


@both
@streamed
@each(("written", "calls", "text"), DECODED.values(), ids=DECODED)
async def test_blocks_are_decoded(written: str, calls: list[Any], text: str, stream: bool):
    got = await Place(PRINT, written).ask(USER, stream=stream)
    assert [part for part in got.parts if isinstance(part, tuple)] == calls
    assert "".join(part for part in got.parts if isinstance(part, str)) == text
    assert got.reason == ("calls" if calls else "stop")
    assert len(set(got.ids)) == len(calls)
    assert all(re.fullmatch(r"call_\w{24}", id) for id in got.ids)


@both
@streamed
async def test_invalid_arguments_are_left_out_if_calls_are_sent_when_complete(stream: bool):
    waiting = evolve(PRINT, arguments="complete", retries=0)
    place = Place(waiting, "So.\n" + block('{"name": "get_weather", "arguments": {"a" 5}}'))
    got = await place.ask(USER, stream=stream, status=200 if stream else 502)
    assert got.parts == (("So.",) if stream else ())
    assert "cannot be read" in got.error


@both
async def test_the_models_own_call_id_is_kept():
    got = await Place(PRINT, block('{"id": "toolu_7", "name": "get_weather", "arguments": {}}')).ask(USER)
    assert got.ids == ("toolu_7",)


@both
@streamed
async def test_forty_six_tools_in_one_request(stream: bool):
    names = [f"mcp_fwbg_tool_{i}" for i in range(23)] + [f"own-tool-{i}" for i in range(23)]
    tools = [function(name, f"Does number {i}.", x=STRING) for i, name in enumerate(names)]
    written = block('{"name": "mcp_fwbg_tool_22", "arguments": {"x": "1"}}')
    place = Place(PRINT, written, "Done.")
    got = await place.ask(USER, tools=tools, stream=stream)
    assert got.parts == (("mcp_fwbg_tool_22", '{"x": "1"}'),)
    assert all(f'{{"name": "{name}", "description": "Does' in place.sent["messages"][0]["content"] for name in names)
    history = [USER, calling((got.ids[0], *got.parts[0])), result(got.ids[0], "22")]
    assert (await place.ask(*history, tools=tools, stream=stream)).parts == ("Done.",)


@both
async def test_without_tools_a_request_passes_unchanged():
    place = Place(PRINT, "Fine.")
    body = json.dumps({"model": "m", "messages": [USER], "odd": 1}, indent=2).encode()
    async with stream_asgi(place.app, PATH, body=body) as reply:
        await reply.body()
    assert place.upstream.requests[0].body == body


@both
@pytest.mark.parametrize("contents", [False, True])
async def test_debug_shows_the_request_and_with_contents_the_prompt(caplog: Any, contents: bool):
    variables = {"STREAMTOOL_DEBUG": "1"} | ({"STREAMTOOL_CONTENTS": "1"} if contents else {})
    shown = load("", variables)
    caplog.set_level(logging.DEBUG, "streamtool.debug")
    await Place(evolve(PRINT, debug=shown.debug, contents=shown.contents), "Fine.").ask(USER)
    log = "\n".join(record.getMessage() for record in caplog.records if record.name == "streamtool.debug")
    assert "as received: m, stream, 1 messages, 1 tools: get_weather" in log
    assert "[0] user      | calls - | ids - | - | " in log
    assert ("And in Tokyo?" in log, "# Tools" in log) == (contents, contents)


# --- Windlass ----------------------------------------------------------------------------------------------------------

RUN_CODE = function(
    "run_code", "Executes code in a sandbox.", code=STRING, language={"type": "string", "default": "python"}
)
SET_STATE = function("set_state", "Persist variables to session state", key=STRING, value={})
DESCRIBED = """\
**run_code**
  Executes code in a sandbox.
Parameters:
  - code (string) (required)
  - language (string) (optional, default: python)
To use:
{"tool": "run_code", "arguments": {"code": "some code"}}

**set_state**
  Persist variables to session state
Parameters:
  - key (string) (required)
  - value (any) (required)
To use:
{"tool": "set_state", "arguments": {"key": "some key", "value": "some value"}}
"""


@both
async def test_tools_are_described_in_markdown():
    [system, _] = await prompt(WINDLASS, {"role": "system", "content": "Solve."}, USER, tools=(RUN_CODE, SET_STATE))
    assert system["content"].startswith("Solve.\n\n# Tools\n")
    assert f"\n## The tools\n\n{DESCRIBED}" in system["content"]


@both
@streamed
async def test_several_objects_in_one_reply_are_several_calls(stream: bool):
    first = '{"tool": "run_code", "arguments": {"code": "result = 42"}}'
    second = '{"tool": "set_state", "arguments": {"key": "result", "value": 42}}'
    place = Place(WINDLASS, f"First let me run the code:\n{first}\n\nThen save it:\n{second}")
    got = await place.ask(USER, tools=(RUN_CODE, SET_STATE), stream=stream)
    text = "".join(part for part in got.parts if isinstance(part, str))
    assert re.sub(r"\s+", " ", text) == "First let me run the code: Then save it:"
    assert [part for part in got.parts if isinstance(part, tuple)] == [
        ("run_code", '{"code": "result = 42"}'),
        ("set_state", '{"key": "result", "value": 42}'),
    ]


@both
async def test_results_are_user_messages_and_empty_messages_are_removed():
    messages = [
        {"role": "system", "content": ""},
        USER,
        {"role": "user", "content": ""},
        calling(("c1", "run_code", '{"code": "print(1)"}')),
        result("c1", "hello world"),
        {"role": "assistant", "content": ""},
        USER,
    ]
    sent = await prompt(WINDLASS, *messages, tools=(RUN_CODE,))
    assert [(message["role"], message["content"]) for message in sent[1:]] == [
        ("user", "And in Tokyo?"),
        ("assistant", '{"tool": "run_code", "arguments": {"code": "print(1)"}}'),
        ("user", "Tool Result (run_code):\nhello world"),
        ("user", "And in Tokyo?"),
    ]


@both
async def test_one_setting_forwards_the_tools():
    place = Place(WINDLASS, "Fine.")
    await place.ask(USER, model="gpt-4o")
    assert [tool["function"]["name"] for tool in place.sent["tools"]] == ["get_weather"]
    assert place.sent["messages"] == [USER]
    await place.ask(USER, model="gemini-3-pro")
    assert "tools" not in place.sent
    assert place.sent["messages"][0]["role"] == "system"
    assert [record.tool_prompt for record in place.records] == [False, True]


@both
async def test_the_clients_messages_are_not_modified():
    messages = [USER, calling(("c1", "run_code", "{}")), result("c1", "ok"), {"role": "assistant", "content": ""}, USER]
    before = json.dumps(messages)
    await prompt(WINDLASS, *messages)
    assert json.dumps(messages) == before


@both
async def test_the_debug_table_shows_each_message_as_received_and_as_sent(caplog: Any):
    """Role, calls, ids, other parts, and its beginning."""
    caplog.set_level(logging.DEBUG, "streamtool.debug")
    messages = [
        USER,
        calling(("c1", "get_weather", "{}")),
        result("c1", "rain " * 30),
        {"role": "assistant", "content": ""},
        USER,
    ]
    await Place(evolve(WINDLASS, debug=True, contents=True), "Fine.").ask(*messages)
    lines = [record.getMessage().partition(": ")[2] for record in caplog.records if record.name == "streamtool.debug"]
    lines = [line for line in lines if line.startswith(("[", "as "))]
    cells = [[cell.strip() for cell in line.split(" | ")] for line in lines]
    assert cells[:6] == [
        ["as received: m, stream, 5 messages, 1 tools: get_weather"],
        ["[0] user", "calls -", "ids -", "-", "And in Tokyo?"],
        ["[1] assistant", "calls get_weather", "ids c1", "-", ""],
        ["[2] user", "calls -", "ids c1", "result", f"{'rain ' * 11}rain…"],
        ["[3] assistant", "calls -", "ids -", "-", ""],
        ["[4] user", "calls -", "ids -", "-", "And in Tokyo?"],
    ]
    assert cells[6] == ["as sent, attempt 1: m, stream, 5 messages, 0 tools"]
    assert [row[0] for row in cells[7:12]] == ["[0] system", "[1] user", "[2] assistant", "[3] user", "[4] user"]
