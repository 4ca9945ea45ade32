"""Reasoning opened by the prompt is delivered immediately as reasoning, and no answer is lost if none was opened."""

import json
from typing import Any

import pytest
from support.dialects import CLIENTS, PATHS, Ask, read, said, write
from support.protocol_validators import VALIDATORS
from support.scripted_replies import ASK, CALL, TOOLS, ModelClient
from support.sweeps import alternating, each
from support.validators import assert_valid

from statemachine import Parser, ReasoningDelta, TextDelta
from streamtool.filters import OpenedReasoning
from streamtool.middleware import ToolMiddleware
from streamtool.settings import Settings
from streamtool.testing import Script, ScriptedUpstream, chunk, stream_asgi, text

both = pytest.mark.anyio
OPEN = Settings(reasoning_open=True)
ANSWER = "It is four."
THOUGHT = "Let me see."
CLOSED = f"{THOUGHT}</think>\n\n{ANSWER}"


async def talked(*replies: str | Script, settings: Settings = OPEN, **fields: Any) -> tuple[ModelClient, Any]:
    talk = ModelClient(*replies, settings=settings)
    body = {**write("chat", ASK), **fields}
    async with stream_asgi(talk.app, PATHS["chat"], body=json.dumps(body).encode()) as reply:
        talk.pieces = [piece async for piece in reply]
        talk.headers = reply.headers
    return talk, deltas(talk.pieces)


def deltas(pieces: list[bytes]) -> list[tuple[str, str]]:
    """Return (kind, text) pairs that the client receives, with neighbours of a kind joined."""
    found: list[tuple[str, str]] = []
    for line in b"".join(pieces).split(b"\n\n"):
        if not line.startswith(b"data: {"):
            continue
        for choice in json.loads(line[6:])["choices"]:
            delta = choice["delta"]
            for kind in ("reasoning_content", "content"):
                if delta.get(kind):
                    before = found.pop()[1] if found and found[-1][0] == kind else ""
                    found.append((kind, before + delta[kind]))
            names = [call["function"].get("name") for call in delta.get("tool_calls", ())]
            found += [("call", name) for name in names if name]
    return found


REPLIES = {
    "closed": (CLOSED, [("reasoning_content", THOUGHT), ("content", f"\n\n{ANSWER}")]),
    "closed at once": (f"</think>\n\n{ANSWER}", [("content", f"\n\n{ANSWER}")]),
    "opened once more": (f"<think>\n{CLOSED}", [("reasoning_content", f"\n{THOUGHT}"), ("content", f"\n\n{ANSWER}")]),
    "a call behind it": (f"{THOUGHT}</think>\n\n{CALL}", [("reasoning_content", THOUGHT), ("call", "ping")]),
    "a call considered": (
        f"Perhaps {CALL}</think>\n\n{ANSWER}",
        [("reasoning_content", f"Perhaps {CALL}"), ("content", f"\n\n{ANSWER}")],
    ),
    "never closed": (ANSWER, [("reasoning_content", ANSWER), ("content", ANSWER)]),
    "a call, never closed": (CALL, [("reasoning_content", CALL), ("call", "ping")]),
    "text and a call, never closed": (
        f"I look.\n{CALL}",
        [("reasoning_content", f"I look.\n{CALL}"), ("content", "I look."), ("call", "ping")],
    ),
}  # fmt: skip


@both
@each("name", REPLIES)
@each("size", [1, 3, 1000])
@alternating
async def test_a_reply_that_begins_inside_reasoning(name: str, size: int):
    reply, expected = REPLIES[name]
    talk, got = await talked(said("chat", reply, size=size))
    assert got == expected
    assert talk.causes == ()
    assert talk.records[0].unmet is None


@both
@each("client", CLIENTS)
@each("stream", [True, False])
@each("name", REPLIES)
@alternating
async def test_every_client_protocol_can_express_it(client: str, stream: bool, name: str):
    reply, expected = REPLIES[name]
    talk = ModelClient(reply, settings=OPEN)
    body = write(client, Ask(ASK.turns, TOOLS, stream))
    async with stream_asgi(talk.app, PATHS[client], body=json.dumps(body).encode()) as response:
        data = await response.body()
    check = VALIDATORS[client][0 if stream else 1]
    assert_valid(check(data, body, headers=response.headers) if stream else check(data, body))
    got = read(client, data, stream=stream)
    calls = [part for part in got.parts if isinstance(part, tuple)]
    assert len(calls) == [kind for kind, _ in expected].count("call")
    assert got.reason == ("calls" if calls else "stop")


@both
async def test_each_piece_of_reasoning_is_sent_with_the_piece_that_brought_it():
    talk, _ = await talked(said("chat", CLOSED, size=4))
    told = [piece for piece in talk.pieces if b"reasoning_content" in piece]
    assert [deltas([piece]) for piece in told] == [
        [("reasoning_content", "Let ")],
        [("reasoning_content", "me s")],
        [("reasoning_content", "ee.")],
    ]


@both
@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_truncated_reasoning_is_not_an_answer(reason: str):
    _, got = await talked(text(THOUGHT, finish=reason))
    assert got == [("reasoning_content", THOUGHT)]


@both
async def test_reasoning_already_separated_by_the_upstream_is_not_separated_again():
    steps = [
        chunk({"role": "assistant", "content": ""}),
        chunk({"reasoning_content": THOUGHT}),
        chunk({"content": "It is "}),
        chunk({"content": "four."}),
        chunk({}, finish="stop"),
    ]
    _, got = await talked(Script(tuple(steps)))
    assert got == [("reasoning_content", THOUGHT), ("content", ANSWER)]
    steps.insert(1, chunk({"content": "\n"}))
    _, got = await talked(Script(tuple(steps)))
    assert got[-1] == ("content", f"\n{ANSWER}")


@both
async def test_a_native_call_ends_reasoning_opened_by_the_prompt():
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "ping", "arguments": '{"x": 1}'}}
    steps = (chunk({"content": "I look. "}), chunk({"tool_calls": [call]}), chunk({"content": "So."}))
    settings = Settings(reasoning_open=True, mode="rescue")
    _, got = await talked(Script((*steps, chunk({}, finish="tool_calls"))), settings=settings)
    assert got == [("reasoning_content", "I look. "), ("call", "ping"), ("content", "So.")]


@both
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "reasoning_content"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "reasoning_content"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "content"),
        ({"chat_template_kwargs": {"thinking": False}}, "content"),
        ({"chat_template_kwargs": {"other": False}}, "reasoning_content"),
        ({"chat_template_kwargs": "odd"}, "reasoning_content"),
        ({"reasoning_effort": "none"}, "content"),
        ({"reasoning_effort": "low"}, "reasoning_content"),
    ],
)
async def test_a_template_file_applies_unless_the_request_disables_reasoning(
    tmp_path: Any, fields: dict[str, Any], expected: str
):
    (tmp_path / "t.jinja").write_text("{% if add_generation_prompt %}<think>\n{% endif %}")
    _, got = await talked(CLOSED, settings=Settings(chat_template=str(tmp_path / "t.jinja")), **fields)
    assert got[0][0] == expected


@both
@pytest.mark.parametrize(("asks", "expected"), [({}, "content"), ({"thinking": True}, "reasoning_content")])
async def test_a_template_that_opens_reasoning_on_request(tmp_path: Any, asks: dict[str, bool], expected: str):
    (tmp_path / "t.jinja").write_text(
        "{% if add_generation_prompt %}{% if not thinking %}</think>{% else %}<think>{% endif %}{% endif %}"
    )
    settings = Settings(chat_template=str(tmp_path / "t.jinja"))
    _, got = await talked(CLOSED, settings=settings, chat_template_kwargs=asks)
    assert got[0][0] == expected


def test_settings_and_templates_that_open_reasoning(tmp_path: Any):
    (tmp_path / "t.jinja").write_text("{% if add_generation_prompt %}<seed:think>{% endif %}")
    file = str(tmp_path / "t.jinja")
    assert opener("Qwen3.5-27B") == ""  # a name alone opens nothing
    assert opener("x", reasoning_open=True) == "<think>"
    assert Settings(reasoning_open=True).for_model("x").opener(thinking=False) == ""
    assert opener("seed-oss", reasoning_open=True) == "<seed:think>"
    assert opener("kimi-k3", reasoning_open=True) == "<|open|>think<|sep|>"
    assert opener("LongCat-Flash", reasoning_open=True) == "<longcat_think>"
    assert opener("MiniMax-M3", reasoning_open=True) == "<mm:think>"
    assert opener("Solar-Open-100B", reasoning_open=True) == "<|think|>"
    assert opener("command-a-reasoning", reasoning_open=True) == "<|START_THINKING|>"
    assert opener("x", chat_template=file) == "<seed:think>"
    assert opener("x", chat_template=file, reasoning_open=True) == "<seed:think>"
    assert opener("x", chat_template=file, reasoning_open=False) == ""
    assert opener("x", chat_template=file, app_protocol="completions") == ""  # for completions the prompt is ours
    assert opener("x", reasoning_open=True, models=[{"match": "x", "reasoning_open": False}]) == ""
    assert opener("x", reasoning_open=True, models=[{"match": "x", "reasoning_open": "auto"}]) == ""
    assert opener("x", models=[{"match": "x", "reasoning_open": True}]) == "<think>"


def opener(model: str, **settings: Any) -> str:
    found = ToolMiddleware(ScriptedUpstream(text("Hi.")), **settings)
    one = found.settings.for_model(model)
    return one.with_template(found.templates.of(one)).opener()


@both
@pytest.mark.parametrize("reply", [CLOSED, ANSWER])
async def test_text_is_not_duplicated_if_reasoning_is_shown_as_text(reply: str):
    _, got = await talked(reply, settings=Settings(reasoning_open=True, reasoning="text"))
    [(kind, shown)] = got
    assert kind == "content"
    assert shown.count(ANSWER) == 1


@both
@pytest.mark.parametrize("reply", [CLOSED, ANSWER])
async def test_the_answer_is_kept_if_reasoning_is_dropped(reply: str):
    _, got = await talked(reply, settings=Settings(reasoning_open=True, reasoning="drop"))
    assert [(kind, shown.strip()) for kind, shown in got] == [("content", ANSWER)]


@both
async def test_kimi_k3_answers_while_its_reasoning_is_open():
    settings = Settings(reasoning_open=True, models=[{"match": "*", "use": "kimi-k3"}])
    _, got = await talked("<|open|>response<|sep|>Hello<|close|>response<|sep|>", settings=settings)
    assert got == [("content", "Hello")]


@both
async def test_a_forced_call_is_found_in_reasoning_that_was_never_closed():
    talk, got = await talked(f"{THOUGHT} {CALL}", tool_choice="required")
    assert [kind for kind, _ in got if kind == "call"] == ["call"]
    assert talk.causes == ()


@both
async def test_a_prefilled_call_has_no_reasoning_before_it():
    settings = Settings(reasoning_open=True, app_forcing="prefill", app_protocol="chat", format="tool_call")
    talk, got = await talked('ping", "arguments": {"x": 1}}\n</tool_call>', settings=settings, tool_choice="required")
    assert talk.upstream.requests[0].json["messages"][-1]["role"] == "assistant"
    assert got == [("call", "ping")]


# --- replies that consist of reasoning only
# ----------------------------------------------------------------------------

UNCLOSED = f"<think>I need a ping. {CALL}"


@both
async def test_a_call_in_reasoning_is_found_for_a_family_that_leaves_it_open():
    settings = Settings(models=[{"match": "*", "use": "Qwen3.5-27B"}])
    talk, got = await talked(UNCLOSED, settings=settings)
    assert got == [("reasoning_content", "I need a ping. "), ("call", "ping")]
    assert talk.causes == ()


@both
@pytest.mark.parametrize("reply", [UNCLOSED, f"{UNCLOSED}</think>", "<think>Hm.</think>\n", "<think>Hm."])
async def test_a_reasoning_only_reply_of_another_family_is_retried(reply: str):
    talk, got = await talked(reply, CALL, settings=Settings())
    assert talk.causes == ("only reasoning",)
    assert [kind for kind, text in got if text.strip()] == ["reasoning_content", "call"]
    assert "Your reply was only reasoning" in talk.upstream.requests[1].json["messages"][-1]["content"]


@both
async def test_a_reasoning_only_reply_separated_by_the_upstream_is_retried_as_well():
    thought = Script((chunk({"reasoning_content": UNCLOSED}), chunk({}, finish="stop")))
    talk, got = await talked(thought, CALL, settings=Settings())
    assert talk.causes == ("only reasoning",)
    assert got[-1] == ("call", "ping")


@both
@pytest.mark.parametrize("reply", [text(UNCLOSED, finish="length"), ANSWER, f"<think>Hm.</think>{ANSWER}"])
async def test_truncated_or_answered_replies_are_not_retried(reply: str | Script):
    talk, _ = await talked(reply, CALL, settings=Settings())
    assert talk.causes == ()


@both
async def test_a_reasoning_only_reply_is_not_retried_without_a_choice_of_tools():
    talk, got = await talked("<think>Hm.", CALL, settings=Settings(), tool_choice="none")
    assert (talk.causes, got) == ((), [("reasoning_content", "Hm.")])


CODER = "<tool_call>\n<function=ping>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>"
PLAMO = (
    "<|plamo:begin_tool_requests:plamo|><|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>ping"
    "<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|><|plamo:msg|>{}<|plamo:end_tool_arguments:plamo|>"
    "<|plamo:end_tool_request:plamo|><|plamo:end_tool_requests:plamo|>"
)
NATIVE = {
    "Qwen3-235B-A22B-Thinking-2507": CALL,
    "NVIDIA-Nemotron-3-Nano-30B-A3B": CODER,
    "Trinity-Large-Thinking": CODER,
    "Laguna-M.1": "<tool_call>ping<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>",
    "GLM-5": "<tool_call>ping</tool_call>",
    "plamo-3-8b": PLAMO,
    "inkling": '<|message_model|>ping<|content_invoke_tool_json|>{"name": "ping", "args": {}}<|end_message|>',
}


def of_family(model: str, *, prompted: bool = True) -> Settings:
    return Settings(reasoning_open=prompted, models=[{"match": "*", "use": model}])


@both
@each("model", NATIVE)
@each("size", [1, 5, 1000])
@alternating
async def test_a_call_ends_reasoning_that_the_prompt_of_its_family_opened(model: str, size: int):
    talk, got = await talked(said("chat", f"I look it up.\n{NATIVE[model]}", size=size), settings=of_family(model))
    assert [(kind, told.strip()) for kind, told in got] == [("reasoning_content", "I look it up."), ("call", "ping")]
    assert talk.causes == ()


OPENED = "Qwen3-235B-A22B-Thinking-2507"
THOUGHT_ABOUT = {
    "markers": "Calls go into <tool_call>, with the name first; others use <function=ping> or [TOOL_CALLS].",
    "an object": 'I could send {"name": "ping", "arguments": {"x": 1}} to it.',
    "code": f"As in\n```\n{CALL}\n```\nthen.",
    "inline code": "As in `<tool_call>ping</tool_call>` then.",
    "another format": '[TOOL_CALLS][{"name": "ping", "arguments": {}}]',
}


@both
@each("thought", THOUGHT_ABOUT)
@each("size", [1, 3, 1000])
@alternating
async def test_a_marker_that_is_only_considered_stays_reasoning(thought: str, size: int):
    written = THOUGHT_ABOUT[thought]
    talk, got = await talked(said("chat", f"{written}</think>{ANSWER}", size=size), settings=of_family(OPENED))
    assert got == [("reasoning_content", written), ("content", ANSWER)]
    assert talk.causes == ()


@both
@each("between", [" So:\n", ""])
@each("size", [1, 4, 1000])
@alternating
async def test_a_call_in_reasoning_and_after_it_is_delivered_once(between: str, size: int):
    reply = f"I look.\n{CALL}{between}</think>\n\n{CALL}"
    talk, got = await talked(said("chat", reply, size=size), settings=of_family(OPENED))
    assert [kind for kind, _ in got if kind == "call"] == ["call"]
    assert not [told for kind, told in got if kind == "content" and told.strip()]
    assert talk.causes == ()


@both
async def test_another_call_after_reasoning_is_another_call():
    other = CALL.replace('"x": 1', '"x": 2')
    _, got = await talked(f"I look.\n{CALL}</think>\n\n{other}\n{CALL}", settings=of_family(OPENED))
    assert [kind for kind, _ in got if kind == "call"] == ["call", "call"]


@both
@each("model", ["qwen3:32b", "deepseek-r1:14b", "gpt-oss-20b"])
@alternating
async def test_other_families_make_no_calls_in_reasoning(model: str):
    _, got = await talked(f"Perhaps {CALL}</think>{ANSWER}", settings=of_family(model))
    assert got == [("reasoning_content", f"Perhaps {CALL}"), ("content", ANSWER)]


# --- the parser ------------------------------------------------------------------------------------------------------


def new_parser(prefix: str) -> Parser:
    return Parser({"ping": {}}, prefix=prefix)


@pytest.mark.parametrize("size", [1, 2, 5, 100])
@pytest.mark.parametrize("reply", ["\n", "", " <thi", "<think>", "<think>a", "a</think>", "\ud83d"])
def test_the_result_does_not_depend_on_the_split_and_no_text_is_lost(reply: str, size: int):
    parser = OpenedReasoning("<think>", new_parser)
    events = [event for i in range(0, len(reply), size) for event in parser.feed(reply[i : i + size])]
    events += parser.close()
    whole = OpenedReasoning("<think>", new_parser)
    assert said_by(events) == said_by([*whole.feed(reply), *whole.close()])
    assert parser.close() == []


def said_by(events: list[Any]) -> tuple[str, str]:
    kinds = (ReasoningDelta, TextDelta)
    return tuple("".join(event.text for event in events if isinstance(event, kind)) for kind in kinds)  # type: ignore[return-value]  # there are two


@pytest.mark.parametrize("waits", ["\n", "<thi", "Hm. </thi", "a <tool_c"])
def test_buffered_text_is_kept_when_the_upstream_separates_the_reasoning(waits: str):
    parser = OpenedReasoning("<think>", new_parser)
    events = [*parser.feed(waits), *parser.disable(), *parser.feed("It is four."), *parser.close()]
    reasoning, shown = said_by(events)
    assert reasoning + shown == f"{waits}It is four."
    assert parser.disable() == []


@pytest.mark.parametrize("reply", ["<think>Hm.", " <think>Hm.</think>", "<thinking>Hm.</thinking>"])
def test_reasoning_is_not_duplicated(reply: str):
    parser = OpenedReasoning("<think>", new_parser)
    reasoning, shown = said_by([*parser.feed(reply), *parser.close()])
    assert reasoning.count("Hm.") == 1
    assert not shown.strip()


def test_a_reply_is_parsed_again_as_an_answer_only_if_the_model_stopped():
    for reason, expected in ((None, ANSWER), ("stop", ANSWER), ("length", ""), ("broken", "")):
        parser = OpenedReasoning("<think>", new_parser)
        assert said_by([*parser.feed(ANSWER), *parser.close(reason)]) == (ANSWER, expected)
