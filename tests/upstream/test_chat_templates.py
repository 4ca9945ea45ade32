"""Chat templates from files and upstreams: their effect, and that a missing one does no harm."""

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest
import trio
from support.servers import Served, uvicorn_server, wait_for

from streamtool.agent import Agent
from streamtool.cli import main
from streamtool.core.clients import client_of
from streamtool.core.errors import SettingsError
from streamtool.middleware import ToolMiddleware
from streamtool.probe import probe
from streamtool.proxy import Proxy
from streamtool.settings import Settings, UpstreamSettings
from streamtool.testing import Hang, Pause, Recorded, Script, ScriptedUpstream, stream_asgi, text
from streamtool.upstream.chat_templates import ChatTemplates, read_template

pytestmark = pytest.mark.usefixtures("asking")
both = pytest.mark.anyio

QWEN = "<tool_call>\n<function=f>\n<parameter=p>\n</parameter></function></tool_call>"
OPENS = "{% if add_generation_prompt %}assistant\n<think>\n{% endif %}"
MINIMAX = "<minimax:tool_call>"
MISTRAL = "[TOOL_CALLS]"
PATH = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}}
ASKED = {"model": "some-model", "stream": True, "messages": [{"role": "user", "content": "Ping!"}], "tools": [TOOL]}


# --- files -----------------------------------------------------------------------------------------------------------


def named(name: str, template: str) -> dict[str, str]:
    return {"name": name, "template": template}


FILES = {
    "jinja": ("chat_template.jinja", QWEN + OPENS),
    "tokenizer config": ("tokenizer_config.json", json.dumps({"chat_template": QWEN + OPENS})),
    "processor config": ("chat_template.json", json.dumps({"chat_template": QWEN + OPENS})),
    "list": (
        "tokenizer_config.json",
        json.dumps({"chat_template": [named("tool_use", QWEN), named("default", OPENS), named("rag", MISTRAL)]}),
    ),
    "list without a default": ("tokenizer_config.json", json.dumps({"chat_template": [named("first", QWEN + OPENS)]})),
}


@pytest.mark.parametrize("name", FILES)
def test_a_template_is_read_from_a_file_or_its_folder(tmp_path: Any, name: str):
    file, content = FILES[name]
    (tmp_path / file).write_text(content)
    for path in (tmp_path / file, tmp_path):
        told = read_template(str(path)).recognised
        assert (told.format, told.opener) == ("qwen3_coder", "<think>")


def test_the_template_file_of_a_folder_takes_precedence_over_its_tokenizer_config(tmp_path: Any):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": MISTRAL}))
    (tmp_path / "chat_template.jinja").write_text(QWEN)
    assert read_template(str(tmp_path)).where == str(tmp_path / "chat_template.jinja")
    (tmp_path / "chat_template.jinja").write_text(" ")
    assert read_template(str(tmp_path)).recognised.format == "mistral"


WRONG = {
    "nothing there": (None, b"", "cannot be read: No such file or directory"),
    "an empty folder": ("", b"", "none of chat_template.jinja, chat_template.json, tokenizer_config.json is in"),
    "no JSON": ("tokenizer_config.json", b"{", "contains no chat template"),
    "no template": ("tokenizer_config.json", b'{"model_max_length": 1}', "contains no chat template"),
    "a template that is none": ("tokenizer_config.json", b'{"chat_template": 5}', "contains no chat template"),
    "templates without names": ("tokenizer_config.json", b'{"chat_template": ["x"]}', "contains no chat template"),
    "a list": ("chat_template.json", b"[]", "contains no chat template"),
    "an empty file": ("chat_template.jinja", b"\n", "contains no chat template"),
    "no UTF-8": ("chat_template.jinja", b"\xff\xfe", "is not UTF-8"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_path_without_a_template_is_a_settings_error(tmp_path: Any, name: str):
    file, content, sentence = WRONG[name]
    place = tmp_path / "model"
    if file is not None:
        place.mkdir()
        if file:
            (place / file).write_bytes(content)
    for settings, where in (
        (Settings(chat_template=str(place)), "chat_template"),
        (Settings(models=[{"match": "x"}, {"match": "*", "chat_template": str(place)}]), "model[1].chat_template"),
    ):
        with pytest.raises(SettingsError) as raised:
            ToolMiddleware(ScriptedUpstream(text("Hi.")), settings=settings)
        assert raised.value.message.startswith(f"{where}: ")
        assert sentence in raised.value.message
        assert raised.value.param == where


def test_the_template_of_a_model_rule_takes_precedence_over_the_general_one(tmp_path: Any):
    (tmp_path / "qwen.jinja").write_text(QWEN)
    (tmp_path / "minimax.jinja").write_text(MINIMAX)
    settings = Settings(
        chat_template=str(tmp_path / "qwen.jinja"),
        models=[
            {"match": "mini*", "chat_template": str(tmp_path / "minimax.jinja")},
            {"match": "set*", "format": "tag"},
            {"match": "none*", "chat_template": "none"},
        ],
    )
    assert formats(settings, "mini-1", "set-1", "none-1", "other", "claude-opus") == [
        ("minimax_m2", "from the template: contains `<minimax:tool_call>`"),
        ("tag", "by setting"),
        ("invoke", "default"),
        ("qwen3_coder", "from the template: contains `<parameter=`"),
        ("qwen3_coder", "from the template: contains `<parameter=`"),
    ]


def formats(settings: Settings, *models: str) -> list[tuple[str, str]]:
    templates = ChatTemplates(settings)
    found = [settings.for_model(model) for model in models]
    return [(one.format, one.training.reason) for one in (model.with_template(templates.of(model)) for model in found)]


def test_a_format_of_special_tokens_is_parsed_but_not_taught(tmp_path: Any):
    (tmp_path / "t.jinja").write_text(MISTRAL)
    reason = "from the template: contains `[TOOL_CALLS]`, a marker of mistral, which uses special tokens"
    assert formats(Settings(chat_template=str(tmp_path / "t.jinja")), "x", "gpt-oss-20b") == [
        ("invoke", reason),
        ("tool_code", reason),
    ]
    (tmp_path / "t.jinja").write_text(">>>all")
    settings = Settings(chat_template=str(tmp_path / "t.jinja"))
    model = settings.for_model("x").with_template(ChatTemplates(settings).of(settings.for_model("x")))
    assert "functionary" in (model.listened_formats or ())


def test_without_a_format_in_the_template_the_model_name_decides(tmp_path: Any):
    (tmp_path / "t.jinja").write_text(OPENS)
    assert formats(Settings(chat_template=str(tmp_path / "t.jinja")), "trinity-x", "x") == [
        ("qwen3_coder", "from the name: family trinity"),
        ("invoke", "default"),
    ]


@both
async def test_the_model_is_taught_the_format_of_the_template_file(tmp_path: Any):
    (tmp_path / "t.jinja").write_text(QWEN)
    upstream = ScriptedUpstream(text("Hi."))
    app = ToolMiddleware(upstream, chat_template=str(tmp_path / "t.jinja"))
    assert await taught(app) == "qwen3_coder"
    assert "<function=ping>" in upstream.requests[0].body.decode()


async def taught(app: Any, **fields: Any) -> str:
    """Return the format named in the reply's header."""
    async with stream_asgi(app, PATH, body=json.dumps({**ASKED, **fields}).encode()) as reply:
        await reply.body()
    return reply.headers["x-streamtool-format"]


# --- upstreams -------------------------------------------------------------------------------------------------------

NOT_FOUND = Script((b'{"error":"not found"}',), 404, "application/json")


def shown(**fields: Any) -> Script:
    return Script((json.dumps(fields).encode(),), content_type="application/json")


def answering(props: Script, show: Script = NOT_FOUND, said: Script | None = None) -> Callable[[Recorded], Script]:
    """Return a server that shows templates like llama.cpp or Ollama. It answers the first other request after a moment,
    so that the template is known before the second one.
    """
    first = [Pause(0.3)]

    def answer(request: Recorded) -> Script:
        if request.path == "/props":
            return props
        if request.path == "/api/show":
            return show
        return said or Script((*([first.pop()] if first else []), *text("Hi.").steps))

    return answer


@contextmanager
def server(*scripts: Script) -> Iterator[tuple[ScriptedUpstream, Served]]:
    upstream = ScriptedUpstream(answering(*scripts))
    with uvicorn_server(upstream) as served:
        yield upstream, served


def asked(upstream: ScriptedUpstream) -> list[str]:
    return [request.path for request in upstream.requests if request.path not in (PATH, "/api/chat")]


LLAMA = shown(chat_template=QWEN, default_generation_settings={"n_ctx": 4096}, total_slots=1)
OLLAMA = shown(template=QWEN, capabilities=["completion", "tools"], model_info={"general.architecture": "qwen3"})
SHOWS = {
    "llama.cpp": (LLAMA, NOT_FOUND, ["/props"]),
    "llama.cpp with two templates": (
        shown(chat_template="{{ m }}", chat_template_tool_use=QWEN),
        NOT_FOUND,
        ["/props"],
    ),
    "Ollama": (NOT_FOUND, OLLAMA, ["/props", "/api/show"]),
}


@both
@pytest.mark.parametrize("name", SHOWS)
@pytest.mark.parametrize("base", ["", "/v1"])
async def test_the_first_request_uses_the_model_name_and_the_next_the_template(name: str, base: str):
    props, show, paths = SHOWS[name]
    with server(props, show) as (upstream, served):
        app = Proxy(Settings(upstreams={"u": {"url": served.url + base}}))
        try:
            assert await taught(app) == "invoke"
            assert await taught(app) == "qwen3_coder"
            assert await taught(app) == "qwen3_coder"
        finally:
            await app.aclose()
    assert asked(upstream) == paths  # asked only once
    if "/api/show" in paths:
        bodies = [request.json for request in upstream.requests if request.path == "/api/show"]
        assert bodies == [{"model": "some-model"}]


@both
async def test_an_ollama_upstream_is_asked_through_its_own_api():
    with server(LLAMA, OLLAMA, Script((b'{"message":{"content":"Hi."},"done":true}\n',))) as (upstream, served):
        app = Proxy(Settings(upstreams={"u": {"url": served.url, "protocol": "ollama"}}))
        try:
            while not asked(upstream):
                await taught(app)
        finally:
            await app.aclose()
    assert set(asked(upstream)) == {"/api/show"}


SILENT = {
    "a 404": NOT_FOUND,
    "an error": Script((b"oops",), 500, "text/plain"),
    "a refusal": Script((b'{"error":{"message":"no key"}}',), 401, "application/json"),
    "no JSON": Script((b"<html>",), content_type="text/html"),
    "another document": shown(chat_template=["a"], template={"b": 1}),
    "no object": Script((b"[1, 2]",), content_type="application/json"),
    "an empty template": shown(chat_template="", template=" "),
    "a router": shown(chat_template=QWEN, role="router"),
    "a huge document": Script(
        (b'{"chat_template": "', *((b"x" * 2**20,) * 12), b'"}'), content_type="application/json"
    ),
    "a connection that breaks": Script((b'{"chat', Hang()), content_type="application/json"),
}


@both
@pytest.mark.parametrize("name", SILENT)
async def test_a_server_without_a_template_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("streamtool.upstream.chat_templates.TIMEOUT", 0.2)
    with server(SILENT[name], SILENT[name] if name != "a router" else NOT_FOUND) as (upstream, served):
        app = Proxy(Settings(upstreams={"u": {"url": served.url}}))
        try:
            for _ in range(3):
                assert await taught(app, model="claude-x") == "invoke"
        finally:
            await app.aclose()
    assert len(asked(upstream)) <= 2  # not asked again


@both
async def test_a_stalled_server_delays_no_request():
    with server(Script((Hang(),), before=(Hang(),)), NOT_FOUND, text("Hi.")) as (_, served):
        app = Proxy(Settings(upstreams={"u": {"url": served.url}}))
        try:
            with anyio.fail_after(3):
                for _ in range(2):
                    assert await taught(app) == "invoke"
        finally:
            await app.aclose()


@both
async def test_an_unreachable_upstream_is_the_usual_error():
    app = Proxy(Settings(upstreams={"u": {"url": "http://127.0.0.1:9"}}))
    async with stream_asgi(app, PATH, body=json.dumps(ASKED).encode()) as reply:
        assert await reply.head() == 502
        assert b"cannot be reached" in await reply.body()
    await app.aclose()


NOBODY_ASKS = {
    "the format is set": {"format": "invoke"},
    "no template is wanted": {"chat_template": "none"},
    "the tools are native": {"mode": "native"},
    "a vendor serves it": {"upstreams": {"u": {"url": "https://api.anthropic.com"}}},
}


@both
@pytest.mark.parametrize("name", NOBODY_ASKS)
async def test_no_template_is_requested_if_it_cannot_be_used(name: str):
    with server(LLAMA) as (upstream, served):
        settings = Settings(**{"upstreams": {"u": {"url": served.url}}, **NOBODY_ASKS[name]})  # type: ignore[arg-type]  # a test's table
        app = Proxy(settings)
        try:
            templates = app._templates
            await templates.learn(settings.for_model("m"))
            await templates.learn_all()
        finally:
            await app.aclose()
    assert asked(upstream) == []


@both
async def test_a_wrapped_app_is_not_asked():
    upstream = ScriptedUpstream(text("Hi."))
    assert await taught(ToolMiddleware(upstream)) == "invoke"
    assert [request.path for request in upstream.requests] == [PATH]


class ByKey:
    """An upstream that shows its template only for the key `right`."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        key = dict(scope["headers"]).get(b"authorization", b"").decode().removeprefix("Bearer ")
        script = text("Hi.")
        if scope["path"] in ("/props", "/api/show"):
            self.asked.append(key)
            script = LLAMA if key == "right" else SILENT["a refusal"]
        start = {"type": "http.response.start", "status": script.status, "headers": []}
        await send(start)
        await send({"type": "http.response.body", "body": b"".join(script.steps)})  # type: ignore[arg-type]  # bytes


async def taught_to(app: Proxy, key: str) -> str | None:
    """Return the format that a client with this key is taught, after its request has been answered."""
    headers = [(b"authorization", f"Bearer {key}".encode())] if key else []
    await app._templates.learn(app.settings.for_model("some-model"), headers)
    async with stream_asgi(app, PATH, body=json.dumps(ASKED).encode(), headers=headers) as reply:
        await reply.body()
        await reply.finished.wait()
        return reply.headers.get("x-streamtool-format")


@both
@pytest.mark.parametrize("first", ["wrong", ""])
async def test_templates_are_learned_per_client_key(first: str):
    upstream = ByKey()
    with uvicorn_server(upstream, lifespan="off") as served:
        app = Proxy(Settings(upstreams={"u": {"url": served.url}}))
        try:
            keys = (first, "right", first, "right")
            assert [await taught_to(app, key) for key in keys] == ["invoke", "qwen3_coder"] * 2
        finally:
            await app.aclose()
    assert upstream.asked == [first, first, "right"]


@both
async def test_a_template_is_learned_though_the_request_that_needed_it_ends_first():
    class Slow(ByKey):
        may_show = False

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            while scope["path"] == "/props" and not self.may_show:
                self.asked.append("waiting")
                await anyio.sleep(0.01)
            await super().__call__(scope, receive, send)

    async def taught() -> str | None:
        headers = [(b"authorization", b"Bearer right")]
        async with stream_asgi(app, PATH, body=json.dumps(ASKED).encode(), headers=headers) as reply:
            await reply.body()
            return reply.headers.get("x-streamtool-format")

    upstream = Slow()
    with uvicorn_server(upstream, lifespan="off") as served, anyio.fail_after(30):
        app = Proxy(Settings(upstreams={"u": {"url": served.url}}))
        upstream.may_show = True
        async with app.running():  # asks for the template without a key first
            while not upstream.asked or app._templates._shown_templates:  # noqa: ASYNC110  it signals nothing
                await anyio.sleep(0.01)
            upstream.may_show, upstream.asked = False, []
            assert [await taught(), await taught()] == ["invoke", "invoke"]
            while not upstream.asked:  # noqa: ASYNC110  as above
                await anyio.sleep(0.01)
            upstream.may_show = True
            while await taught() != "qwen3_coder":  # noqa: ASYNC110  as above
                await anyio.sleep(0.01)
    assert upstream.asked.count("right") == 1


@both
@pytest.mark.parametrize("keys", [[], ["one", "two"]], ids=["without keys", "with keys"])
async def test_a_template_learned_with_the_proxys_key_applies_to_all_clients(keys: list[str]):
    upstream = ByKey()
    with uvicorn_server(upstream, lifespan="off") as served:
        app = Proxy(Settings(upstreams={"u": {"url": served.url, "key": "right"}}, client_keys=keys))
        try:
            assert [await taught_to(app, key) for key in ("one", "two")] == ["qwen3_coder"] * 2
        finally:
            await app.aclose()
    assert upstream.asked == ["right"]


@both
async def test_a_client_with_many_models_does_not_evict_the_templates_of_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("streamtool.upstream.chat_templates._MAX_MODELS", 10)
    with uvicorn_server(ByKey(), lifespan="off") as served:
        settings = Settings(upstreams={"u": {"url": served.url}})
        app = Proxy(settings)
        try:
            templates = app._templates
            quiet, loud = ([(b"authorization", f"Bearer {key}".encode())] for key in ("right", "loud"))
            await templates.learn(settings.for_model("some-model"), quiet)
            for number in range(20):
                await templates.learn(settings.for_model(f"model-{number}"), loud)
            assert templates.found(settings.for_model("some-model"), client_of(quiet))
            await templates.learn(settings.for_model("other"), quiet)
            assert templates.found(settings.for_model("other"), client_of(quiet))
            assert len(templates._shown_templates) == 10
        finally:
            await app.aclose()


@both
@pytest.mark.parametrize(("keys", "shown_key"), [((), "Bearer mine"), (("door",), None)])
async def test_the_template_is_requested_with_the_key_of_the_request(keys: tuple[str, ...], shown_key: str | None):
    with server(LLAMA) as (upstream, served):
        app = Proxy(Settings(upstreams={"u": {"url": served.url}}, client_keys=keys))
        key = b"Bearer " + (keys[0].encode() if keys else b"mine")
        try:
            body = json.dumps(ASKED).encode()
            async with stream_asgi(app, PATH, body=body, headers=[(b"authorization", key), (b"cookie", b"c")]) as reply:
                await reply.body()
        finally:
            await app.aclose()
    [request] = [request for request in upstream.requests if request.path == "/props"]
    assert request.headers.get("authorization") == shown_key
    assert "cookie" not in request.headers
    assert request.scope["query_string"] == b"model=some-model&autoload=false"


def test_a_served_proxy_asks_at_startup():
    with server(LLAMA) as (upstream, served), uvicorn_server(Proxy(Settings(upstreams={"u": {"url": served.url}}))):
        wait_for(
            lambda: asked(upstream).count("/props") == 2, "the upstream receives the requests"
        )  # one for its server
        assert {request.scope["query_string"] for request in upstream.requests} == {b""}


def test_a_served_proxy_asks_for_the_models_named_in_rules():
    settings = {"models": [{"match": "mine", "use": "qwen3"}, {"match": "a-*"}, {"match": "*", "format": "invoke"}]}
    with server(NOT_FOUND, OLLAMA) as (upstream, served):
        proxy = Proxy(Settings(upstreams={"u": {"url": served.url}}, **settings))  # type: ignore[arg-type]  # a test's table
        with uvicorn_server(proxy):
            wait_for(lambda: "/api/show" in asked(upstream), "the upstream receives the request")
    assert [request.json for request in upstream.requests if request.path == "/api/show"] == [{"model": "qwen3"}]


@both
async def test_the_list_of_models_shows_the_taught_format_and_the_reason():
    listed = shown(object="list", data=[{"id": "some-model"}, {"id": "claude-x"}])
    with server(LLAMA, NOT_FOUND, listed) as (_, served):
        app = Proxy(Settings(upstreams={"u": {"url": served.url}}))
        try:
            templates = app._templates
            await templates.learn(app.settings.for_model("some-model"))
            async with stream_asgi(app, "/v1/models", method="GET") as reply:
                models = {model["id"]: model["streamtool"] for model in json.loads(await reply.body())["data"]}
        finally:
            await app.aclose()
    assert models["some-model"] == {
        "mode": "emulate",
        "format": "qwen3_coder",
        "reason": "from the template: contains `<parameter=`",
        "model": "some-model",
        "upstream": "u",
    }
    assert (models["claude-x"]["format"], models["claude-x"]["reason"]) == ("invoke", "from the name: family claude")


@both
async def test_a_conversation_keeps_its_initial_format():
    call = '<invoke name="ping">\n</invoke>'
    with server(LLAMA, NOT_FOUND, text(call)) as (upstream, served):
        app = Proxy(Settings(upstreams={"u": {"url": served.url}}))
        templates = app._templates
        try:
            async with stream_asgi(app, PATH, body=json.dumps({**ASKED, "stream": False}).encode()) as reply:
                message = json.loads(await reply.body())["choices"][0]["message"]
            await templates.learn(app.settings.for_model("some-model"))
            result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "pong"}
            history = [*ASKED["messages"], message, result]  # type: ignore[misc]  # it is a list
            assert await taught(app, messages=history) == "invoke"
            assert call in json.loads(upstream.requests[-1].body)["messages"][-2]["content"]
            assert await taught(app) == "qwen3_coder"
        finally:
            await app.aclose()


@both
async def test_a_header_may_request_the_models_own_format(tmp_path: Any):
    (tmp_path / "t.jinja").write_text(QWEN)
    app = ToolMiddleware(
        ScriptedUpstream(text("Hi.")),
        allow_overrides=True,
        format="invoke",
        chat_template=str(tmp_path / "t.jinja"),
    )
    for given, expected in ((b"auto", "qwen3_coder"), (b"labelled", "labelled")):
        headers = [(b"x-streamtool-format", given)]
        async with stream_asgi(app, PATH, body=json.dumps(ASKED).encode(), headers=headers) as reply:
            await reply.body()
        assert reply.headers["x-streamtool-format"] == expected


@both
async def test_an_agent_knows_the_template_before_its_first_turn():
    with server(LLAMA, NOT_FOUND, text("Done.")) as (upstream, served):
        assert await Agent(f"{served.url}/v1", [], model="some-model").ask("Go.") == "Done."
        assert asked(upstream).count("/props") == 2  # one for its server

        def ping() -> str:
            """Pings."""
            return "pong"

        await Agent(f"{served.url}/v1", [ping], model="some-model").ask("Go.")
    assert "<function=ping>" in upstream.requests[-1].body.decode()


@pytest.mark.trio
async def test_an_agent_does_not_wait_long_for_a_template(autojump_clock: Any):
    class Stalling(ChatTemplates):
        async def learn(self, *_: Any) -> None:
            await trio.sleep_forever()

    began = trio.current_time()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streamtool.agent.resources.ChatTemplates", Stalling)
        assert await Agent(ScriptedUpstream(text("Done.")), []).ask("Go.") == "Done."
    assert trio.current_time() - began < 1.5


@both
async def test_an_internal_error_while_asking_breaks_no_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    async def breaks(*_: Any) -> None:
        raise RuntimeError("a mistake")

    caplog.set_level(logging.DEBUG, "streamtool")
    monkeypatch.setattr("streamtool.upstream.chat_templates.ask_for_template", breaks)
    with server(LLAMA) as (_, served):
        app = Proxy(Settings(upstreams={"u": {"url": served.url}}))
        try:
            assert await taught(app) == "invoke"
        finally:
            await app.aclose()
    assert "could not be requested" in caplog.text


# --- commands --------------------------------------------------------------------------------------------------------


def test_prompt_shows_the_taught_format_and_the_reason(tmp_path: Any, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "t.jinja").write_text(QWEN)
    (tmp_path / "s.toml").write_text(f'chat_template = "{tmp_path / "t.jinja"}"\n')
    (tmp_path / "r.json").write_text(json.dumps(ASKED))
    for flags, sentence in (
        ([], "format invoke: default"),
        (["--config", str(tmp_path / "s.toml")], "format qwen3_coder: from the template: contains `<parameter=`"),
        (["--format", "invoke"], "format invoke: by --format"),
    ):
        assert main(["prompt", str(tmp_path / "r.json"), *flags]) == 0
        assert sentence in capsys.readouterr().err


def test_serve_checks_the_file(tmp_path: Any, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "s.toml").write_text('chat_template = "/nowhere/t.jinja"\n')
    assert main(["serve", "--check", "--config", str(tmp_path / "s.toml")]) == 2
    assert 'chat_template: "/nowhere/t.jinja" cannot be read: No such file or directory' in capsys.readouterr().err


CALLS = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>"


@both
@pytest.mark.parametrize(("said", "confirmed"), [(CALLS, True), ("It is sunny.", False)])
async def test_probe_reports_the_template_and_whether_the_model_follows_it(said: str, confirmed: bool):
    with server(LLAMA, NOT_FOUND, text(said)) as (_, served):
        found = await probe(UpstreamSettings(name="u", url=served.url, protocol="chat"), "some-model")
    told = found.target.template
    assert (told.where, told.format, told.mark) == (
        "/props",
        "qwen3_coder",
        "<parameter=",
    )
    assert found.formats[0].format == "qwen3_coder"
    assert found.confirmed is confirmed
