"""Stored responses: the official client reads, lists and deletes its own, but not those of other clients."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from support.dialects import USAGE, refusal, said
from support.redis_server import redis_server
from support.servers import Served, hypercorn_server, uvicorn_server, wait_for

from streamtool import ToolMiddleware, sample
from streamtool.proxy import Proxy
from streamtool.settings import LimitSettings, StoreSettings
from streamtool.testing import ScriptedUpstream

TOOL: Any = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


class Posts:
    """An app that answers only POST requests to the wrapped app; others are readiness probes of the test server."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await (self._app if scope["method"] == "POST" else sample.app)(scope, receive, send)


@pytest.fixture(params=[uvicorn_server, hypercorn_server], ids=["uvicorn", "hypercorn"])
def serve(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Return a function that runs an app under a real server."""
    with ExitStack() as stack:
        yield lambda app: stack.enter_context(request.param(app))


@pytest.fixture
def client_of() -> Iterator[Any]:
    with ExitStack() as stack:

        def made(served: Served, key: str = "one") -> openai.OpenAI:
            http = stack.enter_context(httpx2.Client(trust_env=False))
            return openai.OpenAI(base_url=served.url + "/v1", api_key=key, http_client=http, max_retries=0)

        yield made


def test_a_response_is_read_unchanged_and_deleted(serve: Any, client_of: Any):
    client = client_of(serve(Proxy()))
    made = client.responses.create(model="sample", input="Call get_weather.", tools=[TOOL], metadata={"a": "b"})
    assert client.responses.retrieve(made.id) == made
    (call,) = [item for item in made.output if item.type == "function_call"]
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError) as raised:
        client.responses.retrieve(made.id)
    assert raised.value.code == "response_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="sample", input="And?", previous_response_id=made.id)
    assert refused.value.code == "previous_response_not_found"
    with pytest.raises(openai.BadRequestError, match="not found"):
        reference: Any = {"type": "item_reference", "id": call.id}
        client.responses.create(model="sample", input=[reference])
    with pytest.raises(openai.NotFoundError):
        client.responses.delete(made.id)


def test_a_streamed_response_is_read_as_in_its_last_event(serve: Any, client_of: Any):
    client = client_of(serve(ToolMiddleware(sample.app)))
    with client.responses.stream(model="sample", input="Hello.") as stream:
        made = stream.get_final_response()
    found = client.responses.retrieve(made.id)
    assert (found.id, found.output_text, found.usage) == (made.id, made.output_text, made.usage)


def test_input_items_are_listed_in_pages(serve: Any, client_of: Any):
    client = client_of(serve(Proxy()))
    first = client.responses.create(model="sample", input="one")
    items: Any = [{"role": "user", "content": str(number)} for number in range(3)]
    made = client.responses.create(model="sample", input=items, previous_response_id=first.id)
    listed = list(client.responses.input_items.list(made.id, order="asc", limit=2))
    assert [item.type for item in listed] == ["message"] * 5
    said = [item.content[0].text for item in listed]
    assert said == ["one", first.output_text, "0", "1", "2"]
    assert len({item.id for item in listed}) == 5
    newest = client.responses.input_items.list(made.id, limit=1)
    assert (newest.data[0].content[0].text, newest.has_more) == ("2", True)
    with pytest.raises(openai.BadRequestError, match="from 1 to 100"):
        client.responses.input_items.list(made.id, limit=0)
    with pytest.raises(openai.BadRequestError, match="no item with id"):
        client.responses.input_items.list(made.id, after="msg_none")


def test_a_response_that_was_not_stored_cannot_be_read(serve: Any, client_of: Any):
    client = client_of(serve(Proxy()))
    made = client.responses.create(model="sample", input="Hello.", store=False)
    for ask in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            ask(made.id)


def test_a_conversation_over_the_limit_on_bodies_is_rejected(serve: Any, client_of: Any):
    """The items that a request refers to count as if they were in its body."""
    client = client_of(serve(Proxy(limits=LimitSettings(body=4000))))
    first = client.responses.create(model="sample", input="x" * 800)  # repeated in the reply
    assert client.responses.create(model="sample", input="Hello.", previous_response_id=first.id).output_text
    with pytest.raises(openai.APIStatusError, match=r"limits\.body") as refused:
        client.responses.create(model="sample", input="y" * 2500, previous_response_id=first.id)
    assert refused.value.status_code == 413


def test_responses_of_other_clients_cannot_be_read_listed_deleted_or_cancelled(serve: Any, client_of: Any):
    served = serve(Proxy(client_keys=["one", "two"]))
    mine, theirs = client_of(served), client_of(served, "two")
    made = mine.responses.create(model="sample", input="Hello.")
    other = theirs.responses
    for ask in (other.retrieve, other.delete, other.input_items.list, other.cancel):
        with pytest.raises(openai.NotFoundError):
            ask(made.id)
    with pytest.raises(openai.AuthenticationError):
        client_of(served, "three").responses.retrieve(made.id)
    assert mine.responses.retrieve(made.id) == made


def test_background_operations_on_other_responses_are_rejected(serve: Any, client_of: Any):
    client = client_of(serve(Proxy()))
    made = client.responses.create(model="sample", input="Hello.")
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(made.id)
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.retrieve(made.id, stream=True)


def test_unsupported_methods_and_paths_are_rejected(serve: Any):
    served = serve(Proxy())
    with httpx2.Client(trust_env=False, base_url=served.url) as client:
        wrong = client.put("/v1/responses/resp_1")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, DELETE, HEAD")
        assert client.get("/v1/responses/resp_1/cancel").headers["allow"] == "POST"
        assert client.get("/v1/responses/").status_code == 404
        assert client.get("/v1/responses/resp_1/other").status_code == 404
        foreign = client.delete("/v1/responses/resp_1", headers={"origin": "https://evil.example"})
        assert foreign.status_code == 403


def test_a_conversation_is_compacted_and_continued(serve: Any, client_of: Any):
    upstream = ScriptedUpstream(said("chat", "Fine."), said("chat", "The user likes tea."), said("chat", "Tea, then."))
    client = client_of(serve(ToolMiddleware(Posts(upstream)))).responses
    first = client.create(model="m", input="I like tea.", tools=[TOOL], instructions="Be kind.")
    compacted = client.compact(
        model="m", previous_response_id=first.id, input="What do I like?", instructions="Be brief."
    )
    assert compacted.object == "response.compaction"
    assert [item.type for item in compacted.output] == ["message", "message", "compaction"]
    assert len({item.id for item in compacted.output}) == 3
    assert compacted.usage.output_tokens == USAGE[1]
    asked = upstream.requests[1].json["messages"]
    assert asked[0] == {"role": "system", "content": "Be brief."}
    assert "Sum up" in asked[-1]["content"]
    kept: Any = [item.model_dump(exclude_none=True, warnings=False) for item in compacted.output]
    client.create(model="m", input=[*kept, {"role": "user", "content": "So?"}])
    went_on = [message["content"] for message in upstream.requests[2].json["messages"]]
    assert "The user likes tea." in "\n".join(went_on)
    assert went_on[-1] == "So?"


def test_a_conversation_is_stored_and_continued(serve: Any, client_of: Any):
    upstream = ScriptedUpstream(said("chat", "Fine."), said("chat", "Tea."), said("chat", "Hm."))
    served = serve(ToolMiddleware(Posts(upstream)))
    client, other = client_of(served), client_of(served, "two")
    kept = client.conversations.create(metadata={"a": "b"}, items=[{"role": "user", "content": "I like tea."}])
    assert client.conversations.retrieve(kept.id) == kept
    first = client.responses.create(model="m", input="Do you?", conversation=kept.id)
    assert first.conversation.id == kept.id
    client.responses.create(model="m", input="What do I like?", conversation={"id": kept.id})
    asked = [message["content"] for message in upstream.requests[1].json["messages"]]
    assert asked[-2:] == ["Fine.", "What do I like?"]
    assert "I like tea." in "".join(asked[:-2])
    items = list(client.conversations.items.list(kept.id, order="asc", limit=2))
    assert [item.content[0].text for item in items] == ["I like tea.", "Do you?", "Fine.", "What do I like?", "Tea."]
    assert len({item.id for item in items}) == 5
    assert client.conversations.items.retrieve(items[1].id, conversation_id=kept.id) == items[1]
    assert client.conversations.items.delete(items[3].id, conversation_id=kept.id) == kept
    added = client.conversations.items.create(kept.id, items=[{"role": "user", "content": "And milk."}])
    assert [item.content[0].text for item in added.data] == ["And milk."]
    assert added.data[0].id not in {item.id for item in items}
    client.responses.create(model="m", input="Hm?", conversation=kept.id, store=False)
    now = client.conversations.items.list(kept.id)
    assert [item.content[0].text for item in now] == ["And milk.", "Tea.", "Fine.", "Do you?", "I like tea."]
    assert client.conversations.update(kept.id, metadata={"c": "d"}).metadata == {"c": "d"}
    for ask in (other.conversations.retrieve, other.conversations.delete, other.conversations.items.list):
        with pytest.raises(openai.NotFoundError):
            ask(kept.id)
    with pytest.raises(openai.NotFoundError) as raised:
        other.responses.create(model="m", input="Hm?", conversation=kept.id)
    assert raised.value.code == "conversation_not_found"
    with pytest.raises(openai.BadRequestError, match="either"):
        client.responses.create(model="m", input="Hm?", conversation=kept.id, previous_response_id=first.id)
    with pytest.raises(openai.NotFoundError, match="Item"):
        client.conversations.items.retrieve("msg_none", conversation_id=kept.id)
    assert client.conversations.delete(kept.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(kept.id)


def test_failures_to_compact_are_reported(serve: Any, client_of: Any):
    upstream = ScriptedUpstream(said("chat", "Too lo", "length"), refusal("chat"), said("chat", "Ok."))
    client = client_of(serve(ToolMiddleware(Posts(upstream)))).responses
    with pytest.raises(openai.InternalServerError, match="no complete summary"):
        client.compact(model="m", input="I like tea.")
    with pytest.raises(openai.RateLimitError):
        client.compact(model="m", input="I like tea.")
    with pytest.raises(openai.BadRequestError, match="input"):
        client.compact(model="m")
    foreign: Any = [{"type": "compaction", "encrypted_content": "gAAAA"}, {"role": "user", "content": "So?"}]
    client.create(model="m", input=foreign)
    assert "gAAAA" not in str(upstream.requests[-1].json)


@pytest.mark.parametrize("kind", ["file", "redis"])
def test_another_process_can_read_and_delete_it(kind: str, serve: Any, client_of: Any, tmp_path: Path):
    with ExitStack() as stack:
        where: Any = {"file": str(tmp_path / "replies.db")}
        if kind == "redis":
            where = {"redis": stack.enter_context(redis_server(tmp_path)).url}
        one, other = (client_of(serve(Proxy(store=StoreSettings(**where)))) for _ in range(2))
        made = one.responses.create(model="sample", input="Hello.")

        def known(client: openai.OpenAI) -> bool:
            try:
                return client.responses.retrieve(made.id) == made
            except openai.NotFoundError:
                return False

        assert known(one)
        wait_for(lambda: known(other), "the other process finds it")
        other.responses.delete(made.id)
        assert not known(other)
        wait_for(lambda: not known(one), "the first process has lost it")


def test_a_failing_store_is_a_503_and_not_a_404(serve: Any, client_of: Any, tmp_path: Path):
    with redis_server(tmp_path) as server:
        client = client_of(serve(Proxy(store=StoreSettings(redis=server.url))))
        server.stop()

        with pytest.raises(openai.InternalServerError) as raised:
            client.responses.retrieve("resp_1")
        assert (raised.value.status_code, raised.value.code) == (503, "store_unavailable")
