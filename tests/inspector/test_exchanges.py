"""Data of the inspector about an exchange: arrival and release of each character, reasons for buffering, the prompt."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.inspected import CALL, TOOLS, ask, held, inspected, model, request, timeline

from conformance.cases import read_cases
from statemachine import FORMATS, Call, Limits, Parser, write
from streamtool.exchange.listener import ParserOptions
from streamtool.inspector import views
from streamtool.inspector.case import case
from streamtool.inspector.playground import play
from streamtool.observe.lines import options_as_json, strip_secrets
from streamtool.observe.ring import Ring
from streamtool.settings import Settings
from streamtool.testing import ScriptedUpstream, text

both = pytest.mark.anyio


@both
async def test_buffered_text_is_recorded_with_start_release_and_reason():
    app = inspected(model(f"Let me look.\n{CALL}"))
    await ask(app)
    (reply,) = timeline(app)["replies"]
    assert reply["text"] == f"Let me look.\n{CALL}"
    found = list(held(reply))
    assert found[0] == ("\n<to", "it may become `<tool_call>`, `<tool_calls>`, `<tool:`, …")
    assert any(why == "a candidate, waiting for its name" for _, why in found)
    assert "".join(piece for piece, _ in found).startswith('\n<tool_call>\n{"name": "get_weath')
    starts = [event for step in reply["steps"] for event in step[7] if event["type"] == "call_start"]
    assert [start["name"] for start in starts] == ["get_weather"]
    first = reply["segments"][0]
    assert (first[2], first[3], first[4]) == ("text", 0, 0), "unbuffered text is released with its delta"


@both
async def test_segments_tile_the_text_and_are_released_when_the_parser_emits_them():
    app = inspected(model(f"One <b>word</b>\n\n{CALL}\n\nand more"))
    await ask(app)
    (reply,) = timeline(app)["replies"]
    segments = reply["segments"]
    assert [start for start, *_ in segments] == [0, *(end for _, end, *_ in segments[:-1])]
    assert segments[-1][1] == len(reply["text"])
    for start, _, _, came, left, _ in segments:
        seconds, begin, end, _, holds, *_ = reply["steps"][came]
        assert begin <= start < end, "a segment arrives with its step"
        assert (left != came) == (start >= end - holds), "and is buffered if that step left it undecided"
        assert seconds <= reply["steps"][min(left, len(reply["steps"]) - 1)][0]


@both
async def test_a_rejected_attempt_has_a_timeline_but_was_never_sent():
    denied = "I'm sorry, but I don't have access to any tools in this conversation."
    app = inspected(model(denied, CALL))
    await ask(app)
    first, second = timeline(app)["replies"]
    assert (first["attempt"], first["rejected"]) == (1, "tools denied")
    assert (second["attempt"], second["rejected"]) == (2, None)
    assert first["sent"] == []
    assert {why for _, why in held(first)} >= {"the beginning of the reply may deny the tools"}
    assert all(left is None for *_, left, _ in first["segments"])
    assert app.observers.ring.summary("1")["rejected"] == ["tools denied"]


@both
async def test_a_quotation_is_marked():
    said = f"The page says {CALL.replace(chr(10), ' ')} somewhere."
    app = inspected(model(f"It {said[4:]}"))
    await ask(app, request(("user", said)))
    (reply,) = timeline(app)["replies"]
    assert reply["quoted"] == ["behind text"]
    assert "it may be a quotation" in {step[6] for step in reply["steps"]}
    quoted = [reply["text"][start:end] for start, end, kind, *_ in reply["segments"] if kind == "quotation"]
    assert "".join(quoted).strip() == CALL.replace("\n", " ")


@both
async def test_arguments_checked_before_sending_are_explained():
    app = inspected(model(CALL), arguments="complete")
    await ask(app)
    (reply,) = timeline(app)["replies"]
    assert "its arguments are checked when they are complete" in {step[6] for step in reply["steps"]}


@both
async def test_a_possible_stop_sequence_is_a_reason_for_buffering():
    app = inspected(model("It is STOP, says the sign."))
    await ask(app, request(stop=["STOP, or", "is STOP, I say", "s STOP, says nobody"]))
    (reply,) = timeline(app)["replies"]
    assert "it may be a stop sequence" in {step[6] for step in reply["steps"]}
    assert ("s ST", "it may be a stop sequence") in list(held(reply))


@both
async def test_the_prompt_is_marked_and_shows_its_cached_part():
    app = inspected(model(CALL, "It rains."), format="tool_call")
    await ask(app)
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    messages = [
        {"role": "user", "content": "What is the weather in Paris?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "18 degrees"},
    ]
    await ask(app, json.dumps({"model": "m", "stream": True, "tools": TOOLS, "messages": messages}).encode())
    (told,) = views.prompts(app.observers.ring, "2", {})["prompts"]
    system, user, assistant, result = told["messages"]
    assert [mark[2] for mark in system["marks"]] == ["the tools"]
    assert user["marks"] == []
    assert [assistant["text"][start:end] for start, end, what in assistant["marks"] if what == "call"] == [CALL]
    assert [mark[2] for mark in result["marks"]] == ["result"]
    assert "18 degrees" in result["text"]
    assert told["before"]["id"] == "1"
    assert told["before"]["kept"] == sum(len(message["text"]) for message in (system, user, assistant))
    assert told["removed"] == 0


@both
async def test_requests_contain_no_headers_and_no_keys():
    app = inspected(model("Hello"))
    secret = "sk-very-secret"
    await ask(
        app, request(mcp_servers=[{"authorization_token": secret}]), [(b"authorization", f"Bearer {secret}".encode())]
    )
    ring = app.observers.ring
    told = json.dumps([view(ring, "1", {}) for name, view in views.VIEWS.items() if name not in ("case", "recording")])
    assert secret not in told
    assert secret not in views.recording(ring, "1", {}).decode()


@both
async def test_a_saved_recording_equals_the_recorded_file(tmp_path):
    app = inspected(model(f"Let me look.\n{CALL}"), recordings=str(tmp_path))
    await ask(app)
    saved = [json.loads(line) for line in views.recording(app.observers.ring, "1", {}).splitlines()]
    (file,) = tmp_path.iterdir()
    written = [json.loads(line) for line in file.read_text().splitlines()]

    def timeless(lines: list[Any]) -> list[Any]:
        return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]

    assert timeless(saved) == timeless(written)


@both
async def test_without_contents_no_text_is_shown():
    app = inspected(model(f"Secret words.\n{CALL}"), contents=False)
    await ask(app)
    told = json.dumps(views.mask(timeline(app)))
    assert "Secret" not in told and "get_weather" not in told and "Paris" not in told
    assert len(views.mask(timeline(app))["replies"][0]["text"]) == len(f"Secret words.\n{CALL}")


# --- the ring


@both
async def test_the_ring_stays_within_its_limits():
    app = inspected(ScriptedUpstream(text("x" * 20_000, size=4)), inspect_size=2**20)
    for _ in range(3):
        await ask(app)
    ring = app.observers.ring
    kept = list(ring.exchanges)
    assert kept[-1] == "3", "the last one is kept"
    assert ring.left == 2**20 - sum(exchange.size for exchange in ring.exchanges.values()) >= 0
    cut = [line["type"] for id in kept for line in ring.lines(id)]
    ring.left = -1
    ring.make_room()
    assert 0 <= ring.left < 2**20, "a truncated exchange frees no more than it used"
    assert "cut" in cut, "an exchange larger than the ring is marked"


@both
async def test_many_small_exchanges_are_limited_by_number(monkeypatch):
    monkeypatch.setattr("streamtool.observe.ring.MAX_EXCHANGES", 5)
    app = inspected(model("ok"))
    for _ in range(8):
        await ask(app)
    assert list(app.observers.ring.versions()) == ["4", "5", "6", "7", "8"]


def test_the_ring_does_not_exist_when_disabled():
    app = inspected(model("ok"), contents=False)
    assert isinstance(app.observers.ring, Ring)
    off = type(app)(model("ok"))
    assert off.observers.ring is None and off.inspector is None


def test_several_workers_are_a_settings_error():
    with pytest.raises(Exception, match="workers = 1"):
        Settings(inspect=True, workers=2)


# --- exports


@given(st.data())
def test_an_exported_case_has_the_events_of_the_parser(data):
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    name = rng.choice(list(FORMATS))
    call = write(
        [
            Call(
                "get_weather",
                json.dumps({"city": data.draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))}),
            )
        ],
        name,
    )
    said = data.draw(st.text(alphabet=st.sampled_from('ab <>`~\n\r\t«»{}"\\é😀'), max_size=30)) + "\n" + call
    options = ParserOptions({"get_weather": {}}, (name,), "", "text", "text", "text", False, Limits())
    made_with = options_as_json(options)
    written = case(said, made_with, title="A title\nin two lines")
    (read,) = read_cases("tool_call", written)
    assert read.text == said
    parser = Parser(read.tools, formats=read.options["formats"])
    events = [*parser.feed(said), *parser.close()]
    calls = [event.name for event in events if type(event).__name__ == "CallStart"]
    assert [event["name"] for event in read.events if event["type"] == "call"] == calls
    shown = "".join(event.text for event in events if type(event).__name__ == "TextDelta")
    assert "".join(event["text"] for event in read.events if event["type"] == "text") == shown


def test_the_playground_rejects_invalid_input_with_a_message():
    for asked, sentence in (
        ([], "send an object"),
        ({"text": "x", "cut": -1}, "`cut`"),
        ({"text": "x" * 600_000}, "the limit is"),
        ({"text": "x", "formats": ["tool_cal"]}, "tool_cal"),
        ({"text": "x", "formats": "tool_call"}, "list of names"),
        ({"text": "x", "tools": 3}, "`tools`"),
        ({"text": "x", "tools": [3]}, "`tools`"),
    ):
        with pytest.raises(Exception, match=sentence):
            play(asked)


def test_secrets_are_redacted_in_a_copy():
    given = {"a": [{"authorization": "x"}]}
    assert strip_secrets(given) == {"a": [{"authorization": "(left out)"}]}
    assert given == {"a": [{"authorization": "x"}]}


@both
async def test_the_ring_tracks_its_size():
    app = inspected(ScriptedUpstream(text("x" * 2_000, size=4)), inspect_size=2**20)
    ring = app.observers.ring
    for _ in range(12):
        await ask(app)
        kept = sum(exchange.size for exchange in ring.exchanges.values())
        assert ring.left == 2**20 - kept >= 0
    assert 1 < len(ring.exchanges) < 12


@both
async def test_an_exchange_evicted_while_open_frees_its_space():
    app = inspected(model("one", "two"))
    ring = app.observers.ring
    await ask(app)
    before = ring.left
    exchange = ring.exchanges["1"]
    ring.left = -1
    ring.make_room()
    assert not ring.exchanges
    assert ring.left == exchange.size - 1
    assert before + exchange.size == ring.size
