"""The model's context window: a prompt that does not fit is rejected in wording that clients recognise, and the reply
limit fits the remaining space.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
import tokenizers
from support.dialects import CLIENTS, PATHS, Ask, events, said, write
from support.servers import Served, uvicorn_server
from support.sweeps import each
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from streamtool.core.errors import SettingsError
from streamtool.middleware import ToolMiddleware
from streamtool.proxy import Proxy
from streamtool.settings import Settings
from streamtool.testing import Script, ScriptedUpstream, stream_asgi

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
TOOLS = (("ping", "Pings.", SCHEMA),)
LONG = "word " * 30_000
WORDS = ("prompt is too long: ", " tokens > 20000 maximum", "maximum context length is 20000 tokens",
         "reduce the length of the messages")  # fmt: skip
"""The phrase that Claude Code, pi, opencode and similar clients look for."""
LIMIT = {"chat": "max_tokens", "messages": "max_tokens", "responses": "max_output_tokens"}

both = pytest.mark.anyio
clients = each("client", CLIENTS)
streamed = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


async def asked(settings: Settings, client: str, text: str, *, stream: bool = False, **fields: Any) -> Any:
    """Return the status, the body, and the upstream, which may not have received a request."""
    upstream = ScriptedUpstream(said("chat", "Fine."))
    app = ToolMiddleware(upstream, settings=settings, app_protocol="chat")
    body = {**write(client, Ask((("user", text),), TOOLS, stream)), **fields}
    async with stream_asgi(app, PATHS[client], body=json.dumps(body).encode()) as reply:
        data = await reply.body()
        return reply.status, data, upstream


@both
@clients
@streamed
async def test_a_prompt_that_cannot_fit_is_rejected_before_it_is_sent(client: str, stream: bool):
    status, data, upstream = await asked(Settings(context=20_000), client, LONG, stream=stream)
    assert not upstream.requests
    if client == "responses" and stream:  # Codex reads the code only from a stream
        assert status == 200
        failed = events(data)[-1]
        assert failed["type"] == "response.failed"
        error = failed["response"]["error"]
    else:
        assert status == 400
        error = json.loads(data)["error"]
        assert error["type"] == "invalid_request_error"
    assert client == "messages" or error["code"] == "context_length_exceeded"
    assert all(words in error["message"] for words in WORDS)


@both
@clients
async def test_the_reply_limit_is_the_space_left_by_the_prompt(client: str):
    for given, sent in ((128_000, None), (100, 100)):
        _, _, upstream = await asked(Settings(context=20_000), client, "word " * 2000, **{LIMIT[client]: given})
        (request,) = upstream.requests
        limit = request.json.get("max_tokens") or request.json["max_completion_tokens"]
        size = sum(len(message["content"]) for message in request.json["messages"])
        assert limit == (sent or pytest.approx(20_000 - size / 4, abs=50))


@both
async def test_without_a_window_no_limit_applies():
    status, _, upstream = await asked(Settings(), "chat", LONG, max_tokens=128_000)
    assert (status, upstream.requests[0].json["max_tokens"]) == (200, 128_000)


@both
async def test_an_estimate_rejects_only_prompts_a_quarter_too_long():
    for size, expected in ((22_000, 200), (26_000, 400)):
        status, _, upstream = await asked(Settings(context=20_000), "chat", "abcd" * size, max_tokens=1000)
        assert status == expected
    status, _, upstream = await asked(Settings(context=20_000), "chat", "abcd" * 22_000, max_tokens=1000)
    assert upstream.requests[0].json["max_tokens"] == 256


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    """Return a tokenizer without vocabulary: each word is one token."""
    made = tokenizers.Tokenizer(WordLevel({"?": 0}, unk_token="?"))
    made.pre_tokenizer = Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    return str(tmp_path)


@both
async def test_a_tokenizer_counts_without_a_margin(tokenizer: str):
    settings = Settings(context=1000, tokenizer=tokenizer)
    _, _, upstream = await asked(settings, "chat", "antidisestablishmentarianism " * 300, max_tokens=5000)
    limit = upstream.requests[0].json["max_tokens"]
    counter = tokenizers.Tokenizer.from_file(f"{tokenizer}/tokenizer.json")
    messages = upstream.requests[0].json["messages"]
    size = sum(4 + len(counter.encode(message["content"])) for message in messages)
    assert limit == max(1000 - size, 256)
    assert 744 > size > 300
    status, data, _ = await asked(settings, "chat", "a " * 1000)
    assert status == 400
    assert " > 1000 maximum" in json.loads(data)["error"]["message"]


@both
async def test_count_tokens_uses_the_tokenizer(tokenizer: str):
    app = ToolMiddleware(ScriptedUpstream(), settings=Settings(tokenizer=tokenizer), app_protocol="chat")
    body = {"model": "m", "messages": [{"role": "user", "content": "antidisestablishmentarianism " * 50}]}
    async with stream_asgi(app, "/v1/messages/count_tokens", body=json.dumps(body).encode()) as reply:
        assert json.loads(await reply.body()) == {"input_tokens": 54}


def test_an_unreadable_tokenizer_is_an_immediate_error(tmp_path: Path):
    (tmp_path / "tokenizer.json").write_text("{}")
    for path in (tmp_path, tmp_path / "nothing.json"):
        with pytest.raises(SettingsError, match=r"tokenizer: .*json is not a valid tokenizer.json") as found:
            ToolMiddleware(ScriptedUpstream(), settings=Settings(models=[{"match": "m", "tokenizer": str(path)}]))
        assert found.value.param == "tokenizer"


@both
async def test_the_list_of_models_shows_the_window():
    listed = {"object": "list", "data": [{"id": "small"}, {"id": "other", "max_model_len": 7}]}
    app = Proxy(
        Settings(
            upstreams={"model": {"url": "http://model.test"}},
            models=[{"match": "small", "context": 20_000}],
        ),
        apps={"model": ScriptedUpstream(Script((json.dumps(listed).encode(),), content_type="application/json"))},
    )
    async with stream_asgi(app, "/v1/models", method="GET") as reply:
        small, other = json.loads(await reply.body())["data"]
    names = ("context_length", "context_window", "max_model_len", "max_input_tokens")
    assert [small[name] for name in names] == [20_000] * 4
    assert [other.get(name) for name in names] == [None, None, 7, None]


TOO_LONG = {
    "vLLM": (400, "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens."),
    "vLLM, prompt": (400, "The decoder prompt (length 5000) is longer than the maximum model length of 4096."),
    "SGLang": (400, "The input (5000 tokens) is longer than the model's context length (4096 tokens)."),
    "llama.cpp": (400, "the request exceeds the available context size (4096 tokens), try increasing it"),
    "LM Studio": (400, "The number of tokens to keep from the initial prompt is greater than the context length"),
    "Gemini": (400, "The input token count (5000) exceeds the maximum number of tokens allowed (4096)."),
    "Anthropic": (400, "prompt is too long: 5000 tokens > 4096 maximum"),
}  # fmt: skip


@both
@clients
@each("engine", TOO_LONG)
async def test_an_upstream_rejection_is_reported_in_the_same_wording(client: str, engine: str):
    status, message = TOO_LONG[engine]
    refusal = Script((json.dumps({"error": {"message": message}}).encode(),), status, "application/json")
    app = ToolMiddleware(ScriptedUpstream(refusal), settings=Settings(), app_protocol="chat")
    body = write(client, Ask((("user", "Hi"),), TOOLS, False))
    async with stream_asgi(app, PATHS[client], body=json.dumps(body).encode()) as reply:
        error = json.loads(await reply.body())["error"]
    assert reply.status == 400
    assert error["message"] == f"prompt is too long: {message.removeprefix('prompt is too long: ')}"
    assert client == "messages" or error["code"] == "context_length_exceeded"


@pytest.fixture(scope="module")
def place() -> Iterator[Served]:
    with uvicorn_server(ToolMiddleware(ScriptedUpstream(), settings=Settings(context=20_000))) as served:
        yield served


def test_the_official_clients_recognise_the_rejection(place: Served):
    with openai.OpenAI(base_url=f"{place.url}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(**write("chat", Ask((("user", LONG),), TOOLS, True)))
        assert refused.value.code == "context_length_exceeded"
        *_, last = client.responses.create(**write("responses", Ask((("user", LONG),), TOOLS, True)))
        assert (last.type, last.response.error.code) == ("response.failed", "context_length_exceeded")
    with (
        anthropic.Anthropic(base_url=place.url, api_key="none", max_retries=0) as claude,
        pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 20000 maximum"),
    ):
        claude.messages.create(**write("messages", Ask((("user", LONG),), TOOLS, False)))
