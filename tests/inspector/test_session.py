"""A session in the inspector: exchanges of one conversation in a row, found in their requests alone."""

from typing import Any

import httpx
import pytest
from support.inspected import CALL, TOOLS, ask, inspected, model, request
from support.servers import uvicorn_server

from streamtool.inspector import views
from streamtool.proxy import Proxy

pytestmark = pytest.mark.anyio
ASKED = {"role": "user", "content": "What is the weather in Paris?"}


def turns(app: Any, id: str = "1") -> list[Any]:
    return views.turns(app.observers.ring, id, {})["turns"]


def told(*messages: dict[str, Any]) -> bytes:
    return request(messages=list(messages))


def called(id: str) -> dict[str, Any]:
    call = {"id": id, "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def answered(id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content}


async def test_the_exchanges_of_a_conversation_are_one_session_with_what_the_client_added():
    app = inspected(model(CALL, "It rains.", "Take an umbrella."))
    await ask(app, told(ASKED))
    (first,) = turns(app)
    id = first["calls"][0]["id"]
    history = [ASKED, called(id), answered(id, "rain, 12 °C")]
    await ask(app, told(*history))
    await ask(
        app, told(*history, {"role": "assistant", "content": "It rains."}, {"role": "user", "content": "And now?"})
    )
    found = turns(app, "2")
    assert [turn["id"] for turn in found] == ["1", "2", "3"]
    assert found == turns(app, "1") == turns(app, "3")
    assert [turn["text"] for turn in found] == ["", "It rains.", "Take an umbrella."]
    assert [(call["name"], call["arguments"]) for call in found[0]["calls"]] == [("get_weather", '{"city": "Paris"}')]
    assert found[0]["inputs"] == [{"kind": "user", "text": ASKED["content"]}]
    assert found[1]["inputs"] == [
        {"kind": "result", "id": id, "name": "get_weather", "text": "rain, 12 °C", "error": False}
    ]
    assert found[2]["inputs"] == [{"kind": "user", "text": "And now?"}]
    assert [turn["waited"] is None for turn in found] == [True, False, False]
    assert all(turn["earlier"] == 0 for turn in found)


async def test_an_exchange_that_is_deleted_meanwhile_is_left_out(monkeypatch):
    app = inspected(model(CALL, "It rains."))
    await ask(app, told(ASKED))
    ((call,),) = (turn["calls"] for turn in turns(app))
    await ask(app, told(ASKED, called(call["id"]), answered(call["id"], "rain")))
    ring = app.observers.ring
    summary = ring.summary

    def deleting(id: str) -> Any:
        if id == "1":
            ring.exchanges.pop("1", None)
        return summary(id)

    monkeypatch.setattr(ring, "summary", deleting)
    assert [turn["id"] for turn in turns(app, "2")] == ["2"]


async def test_sessions_at_the_same_time_stay_apart_and_a_repeated_request_continues_none():
    app = inspected(model(CALL, "Hello.", CALL, "It rains."))
    await ask(app, told(ASKED))
    await ask(app, request(("user", "Hi")))
    await ask(app, told(ASKED))  # the client tries again
    id = turns(app, "3")[0]["calls"][0]["id"]
    await ask(app, told(ASKED, called(id), answered(id, "rain")))
    assert [turn["id"] for turn in turns(app, "2")] == ["2"]
    assert [turn["id"] for turn in turns(app, "4")] == ["3", "4"]
    assert [turn["id"] for turn in turns(app, "1")] == ["1"]


async def test_messages_from_before_the_first_stored_exchange_are_counted():
    app = inspected(model("Fine."))
    await ask(app, told({"role": "user", "content": "One"}, {"role": "assistant", "content": "1"}, ASKED))
    (turn,) = turns(app)
    assert (turn["earlier"], turn["inputs"]) == (2, [{"kind": "user", "text": ASKED["content"]}])


async def test_a_long_result_is_cut_and_its_length_is_shown():
    app = inspected(model(CALL, "Long."))
    await ask(app, told(ASKED))
    await ask(app, told(ASKED, called("call_1"), answered("call_1", "x" * 9_000)))
    (result,) = turns(app, "2")[1]["inputs"]
    assert result["text"] == f"{'x' * 4_000}… (9,000 characters)"


async def test_a_request_that_cannot_be_read_is_a_session_of_its_own():
    class Broken:
        def versions(self) -> dict[str, int]:
            return {"1": 1, "2": 1}

        def summary(self, id: str) -> dict[str, Any]:
            return {}

        def lines(self, id: str) -> Any:
            yield {"type": "exchange", "protocol": "chat", "request": {"messages": 3} if id == "1" else None}

    (turn,) = views.turns(Broken(), "1", {})["turns"]
    assert (turn["inputs"], turn["calls"], turn["waited"]) == ([], [], None)
    with pytest.raises(KeyError):
        views.turns(Broken(), "3", {})


def body_of(protocol: str, history: list[Any]) -> dict[str, Any]:
    match protocol:
        case "messages":
            schema = TOOLS[0]["function"]["parameters"]
            tools = [{"name": "get_weather", "description": "The weather.", "input_schema": schema}]
            return {"model": "m", "max_tokens": 500, "tools": tools, "messages": history}
        case _:
            schema = TOOLS[0]["function"]["parameters"]
            return {
                "model": "m",
                "tools": [{"type": "function", "name": "get_weather", "parameters": schema}],
                **history[0],
            }


def test_a_reply_that_is_named_as_the_previous_one_is_continued():
    with (
        uvicorn_server(Proxy(apps={"m": model(CALL, "It rains.", "Yes.")}, inspect=True, contents=True)) as served,
        httpx.Client(base_url=f"http://127.0.0.1:{served.port}", timeout=30) as client,
    ):
        first = client.post("/v1/responses", json=body_of("responses", [{"input": "What is the weather?"}])).json()
        call = next(item for item in first["output"] if item["type"] == "function_call")
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
        asked = {"input": [result], "previous_response_id": first["id"]}
        second = client.post("/v1/responses", json=body_of("responses", [asked])).json()
        asked = {"input": "Sure?", "previous_response_id": second["id"]}
        client.post("/v1/responses", json=body_of("responses", [asked]))
        found = client.get("/inspect/exchanges/2/session").json()["turns"]
    assert [turn["id"] for turn in found] == ["1", "2", "3"]
    assert [[part["text"] for part in turn["inputs"]] for turn in found] == [
        ["What is the weather?"],
        ["rain"],
        ["Sure?"],
    ]
    assert found[1]["inputs"][0]["name"] == "get_weather"


def test_a_session_of_the_messages_protocol_shows_results_and_errors():
    asked = {"role": "user", "content": "What is the weather?"}
    with (
        uvicorn_server(Proxy(apps={"m": model(CALL, "It failed.")}, inspect=True, contents=True)) as served,
        httpx.Client(base_url=f"http://127.0.0.1:{served.port}", timeout=30) as client,
    ):
        first = client.post("/v1/messages", json=body_of("messages", [asked])).json()
        use = next(block for block in first["content"] if block["type"] == "tool_use")
        result = {"type": "tool_result", "tool_use_id": use["id"], "content": "no network", "is_error": True}
        history = [asked, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": [result]}]
        client.post("/v1/messages", json=body_of("messages", history))
        _, second = client.get("/inspect/exchanges/1/session").json()["turns"]
    assert [(part["name"], part["text"], part["error"]) for part in second["inputs"]] == [
        ("get_weather", "no network", True)
    ]
