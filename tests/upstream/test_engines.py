"""The servers that are recognized, with the answers that their documentation shows, and the consequences for requests."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import anyio
import pytest
from attrs import evolve
from support.servers import Served, uvicorn_server
from support.sweeps import each

from statemachine import Call, write
from streamtool.core.json_value import Json
from streamtool.evaluation.measure import Measurement
from streamtool.evaluation.scenario import demanding, suite
from streamtool.models.engines import ENGINES, HOSTED, recognize
from streamtool.proxy import Proxy
from streamtool.settings import Settings
from streamtool.testing import Hang, Recorded, Script, ScriptedUpstream, status, stream_asgi, text
from streamtool.upstream import engines
from streamtool.upstream.app import HttpUpstream, model_servers

pytestmark = pytest.mark.usefixtures("asking")
both = pytest.mark.anyio

CHAT = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}}


def listed(**fields: Json) -> Json:
    return {"object": "list", "data": [{"id": "m", "object": "model", "created": 1, **fields}]}


OLLAMA: Mapping[str, Json] = {
    "/api/version": {"version": "0.13.1"},
    "/api/tags": {"models": [{"name": "m:latest", "model": "m:latest", "size": 1, "digest": "a"}]},
    "/api/ps": {"models": [{"name": "m:latest", "model": "m:latest", "context_length": 4096}]},
    "/api/show": {
        "parameters": 'stop "<|im_end|>"\ntemperature 0.6',
        "template": "{{ .Prompt }}",
        "model_info": {"general.architecture": "qwen3", "qwen3.context_length": 40960},
        "capabilities": ["completion", "tools"],
    },
    "/v1/models": listed(owned_by="library"),
}
PROPS: Json = {
    "default_generation_settings": {"id": 0, "n_ctx": 8192, "params": {"n_predict": -1}},
    "total_slots": 1,
    "model_path": "/m.gguf",
    "chat_template": "{{ m }}",
    "build_info": "b5210-1d735c0b",
}
KOBOLD: Mapping[str, Json] = {
    "/api/extra/version": {"result": "KoboldCpp", "version": "1.119", "llm": True},
    "/api/extra/true_max_context_length": {"value": 8192},
    "/props": PROPS,
    "/api/version": {"version": "0.7.0"},
    "/api/tags": {"models": [{"name": "koboldcpp"}]},
    "/v1/models": listed(owned_by="koboldcpp"),
}
LM_STUDIO: Json = {
    "object": "list",
    "data": [
        {"id": "other", "object": "model", "type": "vlm", "state": "not-loaded", "max_context_length": 32768},
        {
            "id": "m",
            "object": "model",
            "type": "llm",
            "state": "loaded",
            "max_context_length": 131072,
            "loaded_context_length": 8192,
        },
    ],
}
SERVERS: Mapping[str, tuple[Mapping[str, Json], str]] = {
    "llama.cpp": (
        {"/props": PROPS, "/v1/models": listed(owned_by="llamacpp", meta={"n_ctx_train": 40960})},
        "llama.cpp b5210-1d735c0b at URL: chat, window 8192 (/props), calls forced by schema",
    ),
    "vLLM": (
        {"/version": {"version": "0.11.0"}, "/v1/models": listed(owned_by="vllm", root="m", max_model_len=8192)},
        "vLLM 0.11.0 at URL: chat, window 8192 (/v1/models), calls forced by schema",
    ),
    "SGLang": (
        {
            "/get_server_info": {"version": "0.5.3", "model_path": "m", "context_length": None},
            "/v1/models": listed(owned_by="sglang", root="m", max_model_len=8192),
            "/api/tags": {"models": [{"name": "m"}]},
            "/api/version": {"version": "0.5.3"},
        },
        "SGLang 0.5.3 at URL: chat, window 8192 (/v1/models), calls forced by schema",
    ),
    "Ollama": (OLLAMA, "Ollama 0.13.1 at URL: ollama, num_ctx as needed, up to 40960, calls forced by schema"),
    "LM Studio": (
        {"/api/v0/models": LM_STUDIO, "/v1/models": listed(owned_by="organization_owner")},
        "LM Studio at URL: chat, window 8192 (/api/v0/models), calls forced by schema",
    ),
    "TGI": (
        {
            "/info": {
                "model_id": "m",
                "max_input_tokens": 8000,
                "max_total_tokens": 8192,
                "version": "3.3.4",
                "router": "text-generation-router",
            },
            "/v1/models": listed(owned_by="m"),
        },
        "TGI 3.3.4 at URL: chat, window 8192 (/info), calls forced by schema",
    ),
    "LocalAI": (
        {
            "/.well-known/localai.json": {
                "version": "v2.28.0",
                "endpoints": {"chat_completions": "/v1/chat/completions", "models": "/v1/models"},
            },
            "/version": {"version": "2.28.0 (a1b2c3d4)"},
            "/v1/models": listed(),
        },
        "LocalAI v2.28.0 at URL: chat, window unknown, calls forced by schema",
    ),
    "llama-cpp-python": (
        {
            "/openapi.json": {
                "openapi": "3.1.0",
                "info": {"title": "\U0001f999 llama.cpp Python API", "version": "0.3.36"},
                "paths": {"/v1/chat/completions": {}, "/extras/tokenize/count": {}},
            },
            "/v1/models": listed(owned_by="me", permissions=[]),
        },
        "llama-cpp-python 0.3.36 at URL: chat, window unknown, calls forced by grammar",
    ),
    "transformers serve": (
        {
            "/openapi.json": {
                "openapi": "3.1.0",
                "info": {"title": "FastAPI", "version": "0.1.0"},
                "paths": {"/v1/chat/completions": {}, "/v1/completions": {}, "/load_model": {}, "/reset": {}},
            },
            "/v1/models": listed(owned_by="local", status={"value": "loaded"}),
            "/health": {"status": "ok"},
        },
        "transformers serve at URL: chat, window unknown, calls forced by prompt",
    ),
    "mlx-lm": (
        {"/health": {"status": "ok"}, "/v1/models": listed()},
        "mlx-lm at URL: chat, window unknown, calls forced by prompt",
    ),
    "KoboldCpp": (
        KOBOLD,
        "KoboldCpp 1.119 at URL: chat, window 8192 (/api/extra/true_max_context_length), calls forced by schema",
    ),
    "streamtool": (
        {
            "/v1/models": listed(streamtool={"mode": "emulate", "format": "invoke"}, context_length=8192),
            "/api/version": {"version": "0.12.6"},
            "/api/tags": {"models": [{"name": "m"}]},
        },
        "streamtool at URL: chat, window 8192 (/v1/models), calls forced by schema",
    ),
}
"""Row of the table → its answers, and the line that shows what follows."""


def answering(answers: Mapping[str, Json], reply: Script | None = None) -> Callable[[Recorded], Script]:
    """Return a server that gives these answers, and 404 for all other questions."""

    def answer(request: Recorded) -> Script:
        if request.path == CHAT:
            return reply or text("Hi.")
        if request.path == "/api/chat":
            done = {"model": "m", "message": {"role": "assistant", "content": "Hi."}, "done": True}
            return reply or Script((json.dumps(done).encode() + b"\n",), content_type="application/x-ndjson")
        if request.path in answers:
            return Script((json.dumps(answers[request.path]).encode(),), content_type="application/json")
        return Script((b"404 page not found",), 404, "text/plain")

    return answer


@contextmanager
def server(answers: Mapping[str, Json], reply: Script | None = None) -> Iterator[tuple[ScriptedUpstream, Served]]:
    upstream = ScriptedUpstream(answering(answers, reply))
    with uvicorn_server(upstream) as served:
        yield upstream, served


async def ask(app: Proxy, prompt: str = "Ping!", **fields: Json) -> Any:
    """Send a request with a tool, and return the reply and its headers."""
    body = {"model": "m", "messages": [{"role": "user", "content": prompt}], "tools": [TOOL], **fields}
    async with stream_asgi(app, CHAT, body=json.dumps(body).encode()) as reply:
        return json.loads(await reply.body()), reply.headers


def sent(upstream: ScriptedUpstream) -> list[Recorded]:
    return [request for request in upstream.requests if request.path in (CHAT, "/api/chat")]


def test_each_row_has_a_server():
    assert {row.name for row in ENGINES if row.signs} == set(SERVERS)


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.anyio
async def test_a_server_is_recognized_and_decides_what_is_not_set(name: str):
    answers, line = SERVERS[name]
    row = next(row for row in ENGINES if row.name == name)
    with server(answers) as (upstream, served):
        url = served.url + ("/v1" if name in ("vLLM", "Ollama") else "")
        app = Proxy(Settings(upstreams={"u": {"url": url}}))
        async with app.running():
            assert app.engines == {"u": line.replace("URL", url)}
            await ask(app, tool_choice="required")
            entry = await _entry(app)
        request, *_ = sent(upstream)
    window = 40960 if row.grows else None if "unknown" in line else 8192
    assert request.path == ("/api/chat" if row.protocol == "ollama" else CHAT)
    assert ("response_format" in request.json or "format" in request.json) is (row.forcing == "auto")
    assert entry.get("max_model_len", window) == window
    assert entry["streamtool"]["engine"] == line.partition(" at URL")[0]


@both
async def test_an_evaluation_forces_calls_like_the_proxy():
    answers, _ = SERVERS["llama.cpp"]
    scenario = demanding(next(iter(suite())))
    with server(answers) as (upstream, served):
        settings = Settings(upstreams={"u": {"url": served.url}}, format="invoke", refusals="pass")
        async with HttpUpstream(settings.upstreams["u"]) as app:
            measurement = Measurement(app, settings, "m", seconds=60.0)
            await measurement.prepare()
            await measurement.ask(scenario)
        first, *_ = sent(upstream)
    assert first.json["response_format"]["type"] == "json_schema"


async def _entry(app: Proxy) -> Any:
    async with stream_asgi(app, "/v1/models", method="GET") as reply:
        return json.loads(await reply.body())["data"][0]


@pytest.mark.anyio
async def test_llama_cpp_gets_a_grammar_over_completions_even_if_the_choice_is_free():
    with server(SERVERS["llama.cpp"][0]) as (upstream, served):
        app = Proxy(Settings(upstreams={"u": {"url": served.url, "protocol": "completions"}}))
        async with app.running():
            assert app.engines["u"].endswith(": completions, window 8192 (/props), calls forced by grammar")
            for choice in ("auto", "required"):
                await ask(app, tool_choice=choice)
    free, demanded = (request.json for request in upstream.requests if request.path == "/v1/completions")
    assert free["grammar_triggers"]
    assert "grammar" in demanded
    assert "grammar_triggers" not in demanded


@pytest.mark.anyio
@each("name", ["vLLM", "SGLang"])
async def test_special_tokens_are_kept_where_calls_are_text(name: str):
    """The server strips them unless the request keeps them. The client's own value takes precedence."""
    written = write([Call("ping", "{}")], "kimi_k2")
    answer = answering(SERVERS[name][0])

    def strips(request: Recorded) -> Script:
        if request.path != CHAT:
            return answer(request)
        return text(re.sub(r"<\|.*?\|>", "", written) if request.json.get("skip_special_tokens", True) else written)

    upstream = ScriptedUpstream(strips)
    with uvicorn_server(upstream) as served:
        app = Proxy(Settings(upstreams={"u": {"url": served.url}}, unknown_tools="deliver"))
        async with app.running():
            for fields, calls in (({}, 1), ({"skip_special_tokens": True}, 0)):
                reply, _ = await ask(app, **fields)
                assert len(reply["choices"][0]["message"].get("tool_calls") or ()) == calls
            await ask(app, tools=[])
    kept, stripped, plain = (request.json.get("skip_special_tokens") for request in sent(upstream))
    assert (kept, stripped, plain) == (False, True, None)


@both
async def test_what_is_set_by_hand_wins():
    fields = {"url": "", "protocol": "chat", "forcing": "prompt"}
    with server(OLLAMA) as (upstream, served):
        settings = Settings(upstreams={"u": {**fields, "url": served.url}}, context=2048)
        app = Proxy(settings)
        async with app.running():
            assert app.engines == {
                "u": f"Ollama 0.13.1 at {served.url}: chat, window 2048, calls forced by prompt",
            }
            refused, _ = await ask(app, "ping " * 4000)
            await ask(app, tool_choice="required")
        request, *_ = sent(upstream)
    assert refused["error"]["code"] == "context_length_exceeded"
    assert request.path == CHAT
    assert "response_format" not in request.json


@both
async def test_a_forcing_that_the_own_protocol_lacks_keeps_chat():
    with server(OLLAMA) as (_, served):
        app = Proxy(Settings(upstreams={"u": {"url": served.url, "forcing": "grammar"}}))
        async with app.running():
            assert ": chat, " in app.engines["u"]


@both
async def test_a_prompt_that_cannot_fit_is_refused_in_the_words_of_the_protocol():
    with server(SERVERS["llama.cpp"][0]) as (upstream, served):
        app = Proxy(Settings(upstreams={"u": {"url": served.url}}))
        async with app.running():
            refused, _ = await ask(app, "ping " * 20000)
    assert refused["error"]["code"] == "context_length_exceeded"
    assert "> 8192 maximum" in refused["error"]["message"]
    assert not sent(upstream)


@both
async def test_a_window_that_has_grown_costs_one_refused_request(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engines, "_AGAIN", 0.0)
    answers = dict(SERVERS["llama.cpp"][0])
    with server(answers) as (upstream, served):
        app = Proxy(Settings(upstreams={"u": {"url": served.url}}))
        async with app.running():
            answers["/props"] = {**PROPS, "default_generation_settings": {"n_ctx": 65536}}
            refused, _ = await ask(app, "ping " * 20000)
            accepted, _ = await ask(app, "ping " * 20000)
    assert "error" in refused
    assert accepted["choices"][0]["message"]["content"] == "Hi."
    assert len(sent(upstream)) == 1


@both
async def test_ollama_is_asked_for_the_window_that_the_prompt_needs():
    """It never shrinks, because Ollama loads the model again for each change."""
    with server(OLLAMA) as (upstream, served):
        app = Proxy(Settings(upstreams={"u": {"url": served.url}}))
        async with app.running():
            for words in (1, 4000, 1, 12000):
                await ask(app, "ping " * words, max_tokens=100)
            refused, _ = await ask(app, "ping " * 60000)
        asked = [request.json.get("options", {}).get("num_ctx") for request in sent(upstream)]
    assert asked == [None, 8192, 8192, 32768]
    assert "> 40960 maximum" in refused["error"]["message"]


@both
async def test_a_num_ctx_in_the_file_of_a_model_is_its_window():
    shown = {**OLLAMA["/api/show"], "parameters": "num_ctx                        16384\ntemperature 1"}
    with server({**OLLAMA, "/api/show": shown}) as (upstream, served):
        app = Proxy(Settings(upstreams={"u": {"url": served.url}}))
        async with app.running():
            await ask(app, "ping " * 8000)
            refused, _ = await ask(app, "ping " * 20000)
        [request] = sent(upstream)
    assert request.json["options"]["num_ctx"] == 16384
    assert "> 16384 maximum" in refused["error"]["message"]


LIARS: Mapping[str, Json] = {
    "nothing": {},
    "a list": {"/props": [1], "/v1/models": [], "/api/tags": [], "/health": "ok"},
    "other types": {
        "/props": {"default_generation_settings": {"n_ctx": "big"}, "build_info": 7},
        "/v1/models": {"data": {"owned_by": "vllm"}},
    },
    "a window of no size": {"/props": {"default_generation_settings": {"n_ctx": -1}}},
    "a window of any size": {"/v1/models": listed(owned_by="vllm", max_model_len=2**70)},
    "names that are not strings": {"/v1/models": {"data": [{"id": ["m"], "owned_by": "vllm", "max_model_len": 8192}]}},
    "Open WebUI": {"/api/version": {"version": "0.6.0"}, "/health": {"status": True}},
}


@each("name", LIARS)
def test_an_answer_that_makes_no_sense_sets_no_window(name: str):
    found = recognize(LIARS[name])
    assert found is None or found.window("m") is None


ODD = {
    "500": status(500),
    "a page": Script((b"<html>",), content_type="text/html"),
    "half an answer": Script((b'{"default_generation_settings": {"n_',), content_type="application/json"),
    "silence": Script((), before=(Hang(),)),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.anyio
async def test_a_server_that_does_not_answer_is_asked_as_before(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engines, "TIMEOUT", 0.05)
    upstream = ScriptedUpstream(lambda request: text("Hi.") if request.path == CHAT else ODD[name])
    with uvicorn_server(upstream) as served:
        app = Proxy(Settings(upstreams={"u": {"url": served.url}}))
        began = anyio.current_time()
        async with app.running():
            assert anyio.current_time() - began < 2
            assert app.engines["u"] == (f"unknown server at {served.url}: chat, window unknown, calls forced by schema")
            said, _ = await ask(app)
    assert said["choices"][0]["message"]["content"] == "Hi."


@both
async def test_a_server_that_returns_is_recognized():
    loaded = False
    answer = answering(SERVERS["vLLM"][0])
    with uvicorn_server(ScriptedUpstream(lambda request: answer(request) if loaded else status(503))) as served:
        app = Proxy(Settings(upstreams={"u": {"url": served.url}}))
        async with app.running():
            assert app.engines["u"].startswith("unknown server")
            refused, _ = await ask(app)
            loaded = True
            await ask(app)
            with anyio.fail_after(5):
                while not app.engines["u"].startswith("vLLM"):  # noqa: ASYNC110  it is recognized in another task
                    await anyio.sleep(0.01)
    assert "error" in refused


@both
async def test_a_failover_group_speaks_one_protocol():
    with server(OLLAMA) as (_, first), server(SERVERS["vLLM"][0]) as (_, second), server(OLLAMA) as (_, third):
        for other, protocol in ((second, "chat"), (third, "ollama")):
            upstreams = {"a": {"url": first.url, "fallbacks": ["b"]}, "b": {"url": other.url}}
            app = Proxy(Settings(upstreams=upstreams))
            async with app.running():
                assert f": {protocol}, " in app.engines["a"]
                assert f": {protocol}, " in app.engines["b"]


@both
async def test_nothing_is_asked_before_the_proxy_is_started():
    with server(OLLAMA) as (upstream, served):
        app = Proxy(Settings(upstreams={"u": {"url": served.url}}))
        await ask(app)
        await app.aclose()
        assert app.engines == {}
    assert not {request.path for request in upstream.requests} & {"/api/version", "/api/tags", "/health"}


def test_vendors_are_recognized_by_their_hosts_and_asked_nothing():
    upstreams = {host: {"url": f"https://{host}"} for host in HOSTED}
    settings = Settings(upstreams=upstreams)
    apps = {name: HttpUpstream(one) for name, one in settings.upstreams.items()}
    assert not model_servers(apps)
    found = engines.Engines(settings, {})
    assert found.lines()["api.anthropic.com"] == (
        "Anthropic at https://api.anthropic.com: messages, window unknown, calls forced by prompt"
    )
    for host, row in HOSTED.items():
        assert settings.upstreams[host].wire_protocol == row.protocol


def test_a_larger_window_never_exceeds_the_maximum():
    found = recognize({path: OLLAMA[path] for path in OLLAMA})
    assert found is not None
    found = evolve(found, maximums={"m:latest": 6000})
    assert found.window_for("m", 2000) is None
    assert found.window_for("m", 5000) == 6000
    assert found.window_for("other", 5000) == 8192


# --- prompts that were cut ---------------------------------------------------------------------------------------------

WORDS = "one two three four five six seven eight nine ten " * 300
"""A prompt of 3,000 words, which are at least as many tokens."""


def replying(read: int, *, cached: int = 0) -> Script:
    """Return a reply of a Chat Completions server that reports this many prompt tokens."""
    usage = {"prompt_tokens": read, "completion_tokens": 2, "total_tokens": read + 2}
    told: dict[str, Any] = {**usage, **({"prompt_tokens_details": {"cached_tokens": cached}} if cached else {})}
    return text("Hi.", usage=told)


def replying_ollama(read: int) -> Script:
    done = {"model": "m", "message": {"role": "assistant", "content": "Hi."}, "done": True, "prompt_eval_count": read}
    return Script((json.dumps({**done, "eval_count": 2}).encode() + b"\n",), content_type="application/x-ndjson")


CUT = "the upstream read 2051 of at least 31"
REMEDY = 'set context, which Ollama gets as num_ctx if protocol is "ollama"'


async def told(
    answers: Mapping[str, Json], reply: Script, prompt: str = WORDS, **settings: Any
) -> tuple[Any, Any, Any]:
    """Return the reply to a long prompt, its headers and the record."""
    records: list[Any] = []
    with server(answers, reply) as (_, served):
        app = Proxy(Settings(upstreams={"u": {"url": served.url}}, **settings), on_exchange=records.append)
        async with app.running():
            said, headers = await ask(app, prompt)
    return said, headers, records[0]


@both
async def test_a_prompt_that_was_cut_is_reported_with_the_remedy(caplog: pytest.LogCaptureFixture):
    said, headers, record = await told(OLLAMA, replying_ollama(2051))
    assert said["choices"][0]["message"]["content"] == "Hi."
    assert headers["x-streamtool-truncated"].startswith(CUT)
    assert headers["x-streamtool-truncated"].endswith(REMEDY)
    assert (record.prompt_cut.read, record.prompt_cut.least // 100) == (2051, 31)
    assert record.engine == "Ollama 0.13.1"
    [line] = [line for line in caplog.records if line.name == "streamtool.exchange"]
    assert line.levelname == "WARNING"
    assert "2,051 of at least 3,1" in line.message


@both
async def test_a_prompt_that_was_cut_fails_if_the_setting_demands_it():
    said, _, record = await told({}, replying(2051), truncated_prompt="error")
    assert said["error"]["code"] == "prompt_truncated"
    assert said["error"]["message"].startswith(CUT)
    assert record.status == 502


@both
async def test_a_streamed_reply_to_a_prompt_that_was_cut_ends_with_the_error():
    with server({}, replying(2051)) as (_, served):
        for setting, fails in (("warn", False), ("error", True)):
            app = Proxy(Settings(upstreams={"u": {"url": served.url}}, truncated_prompt=setting))  # type: ignore[arg-type]  # a word
            body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": WORDS}], "tools": [TOOL]}
            async with stream_asgi(app, CHAT, body=json.dumps(body).encode()) as reply:
                data = await reply.body()
            await app.aclose()
            assert b"Hi." in data
            assert (b"prompt_truncated" in data) is fails


UNCUT: Mapping[str, tuple[Mapping[str, Json], Script, str]] = {
    "all of it": ({}, replying(4000), WORDS),
    "slightly less than its words, because a template drops text": ({}, replying(2500), WORDS),
    "cached tokens are part of the count": ({}, replying(4000, cached=3900), WORDS),
    "no count": ({}, replying(0), WORDS),
    "a short prompt": ({}, replying(3), "one two " * 100),
    "long runs of one character": ({}, replying(300), ("=" * 100 + " " * 300 + "\n") * 200),
    "base64": ({}, replying(3000), "QUJD" * 8000),
    "Chinese": ({}, replying(4500), "今天的天气怎么样" * 1000),
    "Chinese in long tokens": ({}, replying(2000), "今天的天气怎么样" * 1000),
    "code": ({}, replying(2600), "        if value is None:\n            return self._found[name]\n" * 200),
    "a server that rejects long prompts": (SERVERS["vLLM"][0], replying(300), WORDS),
    "a version of Ollama that leaves cached tokens out": (
        {**OLLAMA, "/api/version": {"version": "0.30.2"}},
        replying_ollama(12),
        WORDS,
    ),
}


@pytest.mark.parametrize("name", UNCUT)
@pytest.mark.anyio
async def test_a_prompt_that_was_read_is_not_reported(name: str):
    answers, reply, prompt = UNCUT[name]
    _, headers, record = await told(answers, reply, prompt)
    assert record.prompt_cut is None
    assert "x-streamtool-truncated" not in headers


# --- counting and distrust -------------------------------------------------------------------------------------------

COUNTS: Mapping[str, Json] = {
    "llama.cpp": {"tokens": [1] * 321},
    "vLLM": {"count": 321, "max_model_len": 8192, "tokens": [1] * 321},
    "SGLang": {"tokens": [1] * 321, "count": 321, "max_model_len": 8192},
    "TGI": [{"id": 1, "text": "a", "start": 0, "stop": 1}] * 321,
    "KoboldCpp": {"value": 321, "ids": [1] * 321},
}


@both
@each("name", COUNTS)
async def test_a_recognized_server_counts_the_tokens(name: str):
    counter = next(row for row in ENGINES if row.name == name).counter
    assert counter is not None
    answers = {**SERVERS[name][0], counter.path: COUNTS[name]}
    body = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "Some words."}]}
    with server(answers) as (upstream, served):
        app = Proxy(Settings(upstreams={"u": {"url": served.url + "/v1"}}))
        async with (
            app.running(),
            stream_asgi(app, "/v1/messages/count_tokens", body=json.dumps(body).encode()) as reply,
        ):
            assert json.loads(await reply.body()) == {"input_tokens": 325}
    [asked] = [request for request in upstream.requests if request.path == counter.path]
    assert asked.json == {"model": "m", counter.member: "Some words."}


@both
@pytest.mark.parametrize("prefix", ["", "/model-server"])  # the URL is part of the error message
async def test_a_server_that_does_not_serve_its_own_protocol_costs_one_refused_request(prefix: str):
    answer = answering(OLLAMA)

    def lies(request: Recorded) -> Script:
        request = evolve(request, path=request.path.removeprefix(prefix))
        return Script((b"404 page not found",), 404, "text/plain") if request.path == "/api/chat" else answer(request)

    upstream = ScriptedUpstream(lies)
    with uvicorn_server(upstream) as served:
        app = Proxy(Settings(upstreams={"u": {"url": served.url + prefix}}))
        async with app.running():
            refused, _ = await ask(app)
            accepted, _ = await ask(app)
    assert "error" in refused
    assert accepted["choices"][0]["message"]["content"] == "Hi."
    paths = [request.path for request in upstream.requests]
    assert [path for path in paths if path.endswith(("/api/chat", CHAT))] == [f"{prefix}/api/chat", prefix + CHAT]
