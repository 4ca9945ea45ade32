"""`probe` against upstreams with different capabilities, over real sockets; and `streamtool probe`, which prints the
result.
"""

import io
import itertools
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen
from support import dialects
from support.forked import Forked
from support.servers import free_port, uvicorn_server, wait_for

from streamtool import sample
from streamtool.cli import main
from streamtool.cli.probe import name_of, settings_text, toml
from streamtool.core.errors import StreamtoolError, UpstreamError, UpstreamRefused, UpstreamTimeout
from streamtool.probe import (
    MARKERS,
    Findings,
    ProbeAnswer,
    ProbeTarget,
    ShownTemplate,
    Stream,
    Taught,
    ToolFindings,
    probe,
)
from streamtool.settings import UpstreamSettings, load
from streamtool.testing import Die, Hang, Pause, Recorded, Script, ScriptedUpstream, chunk

ROOT = Path(__file__).resolve().parent.parent.parent
LISTS = {
    "chat": ("/v1/models", {"object": "list", "data": [{"id": "text-embed"}, {"id": "fake"}]}),
    "messages": ("/v1/models", {"data": [{"id": "fake", "type": "model"}]}),
    "ollama": ("/api/tags", {"models": [{"name": "fake:8b"}]}),
    "gemini": ("/v1beta/models", {"models": [{"name": "models/fake"}]}),
    "completions": ("/v1/models", {"data": [{"id": "fake"}]}),
}
ASKED = {
    "chat": "/v1/chat/completions",
    "messages": "/v1/messages",
    "ollama": "/api/chat",
    "gemini": "/v1beta/models/fake:streamGenerateContent",
    "completions": "/v1/completions",
}
ALL = ("invoke", "tool_call", "qwen3_coder", "fenced", "labelled", "object")
PARIS = '{"city": "Paris"}'

both = pytest.mark.anyio


@frozen
class Fake:
    """A model server that speaks one protocol, with the capabilities of its fields."""

    protocol: str = "chat"
    streams: bool = True
    system: str = "obeyed"
    """`obeyed`, `refused`, or `lost`: the system message does not reach the model."""
    alternates: bool = False
    tools: str = "calls"
    """`calls`, `leaks`, `denied` or `ignored`."""
    strips: bool = False
    can: bool = True
    """Whether it supports prefill, JSON schemas and stop strings."""
    obeys: tuple[str, ...] = ALL
    key: str | None = None
    limits: bool = True
    """Whether it supports a token limit."""

    def __call__(self, request: Recorded) -> Script:
        if self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}":
            shown = request.headers.get("authorization", "nothing")
            return error(401, f"wrong key: {shown}")
        path, listed = LISTS[self.protocol]
        if request.path == path and not request.body:
            return Script((json.dumps(listed).encode(),), content_type="application/json")
        if request.path != ASKED[self.protocol]:
            return error(404, "there is nothing here")
        body = request.json
        turns = turns_of(self.protocol, body)
        refused = self.refusal(body, turns)
        if refused is not None:
            return refused
        text = self.text(body, [turn for turn in turns if turn[0] != "system" or self.system != "lost"])
        if text is None:
            return call()
        if self.streams:
            script = dialects.said(self.protocol, text)
            if "Count" in turns[-1][1]:
                first, *rest = script.steps
                return Script((first, *[step for one in rest for step in (Pause(0.002), one)]))
            return Script((b"".join(step for step in script.steps if isinstance(step, bytes)),))
        assert self.protocol == "chat"
        message = {"role": "assistant", "content": text}
        whole = {"id": "c", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        return Script((json.dumps(whole).encode(),), content_type="application/json")

    def refusal(self, body: Any, turns: list[tuple[str, str]]) -> Script | None:
        roles = [role for role, _ in turns]
        if not self.limits and "max_tokens" in body:
            return error(400, "Unsupported parameter: 'max_tokens' is not supported with this model.")
        if "tools" in body and self.tools == "denied":
            return error(400, "fake does not support tools")
        if "system" in roles and self.system == "refused":
            return error(400, "System role not supported")
        if self.alternates and any(a == b for a, b in itertools.pairwise(roles)):
            return error(500, "Conversation roles must alternate user/assistant/user/assistant/...")
        return None

    def text(self, body: Any, turns: list[tuple[str, str]]) -> str | None:
        """Return the model's text; None if it makes a native call."""
        whole = "\n".join(text for _, text in turns)
        if "tools" in body:
            leak = f'<tool_call>{{"name": "get_weather", "arguments": {PARIS}}}</tool_call>'
            return {"calls": None, "leaks": leak, "ignored": "It is sunny in Paris."}[self.tools]
        lesson = sample.learn(whole)
        if lesson is not None:
            said = sample.reply([{"role": role, "content": text} for role, text in turns])
            return said if lesson.format in self.obeys else "It is always sunny there."
        if "saffron" in whole:
            return "saffron"
        if "Repeat these lines" in whole:
            lines = whole.partition("\n")[2]
            return re.sub(r"<\S*\|.*?>|\[[A-Z_]+\]", "", lines) if self.strips else lines
        if "zeb" in whole:
            return "ra." if self.can else "It is the zebra."
        if "capital" in whole:
            return '{"city": "Paris"}' if self.can else "It is Paris."
        if "1 2 3" in whole:
            return "1 2 3 4 5 " if self.can else "1 2 3 4 5 6 7 8 9"
        return "Pong, as you have asked me to say."


def turns_of(protocol: str, body: Any) -> list[tuple[str, str]]:
    match protocol:
        case "completions":
            parts = re.findall(r"<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>|\Z)", body["prompt"], re.DOTALL)
            return [(role, text) for role, text in parts if text]
        case "gemini":
            system = [("system", part["text"]) for part in body.get("systemInstruction", {}).get("parts", ())]
            turns = [
                (turn["role"].replace("model", "assistant"), "\n".join(part["text"] for part in turn["parts"]))
                for turn in body["contents"]
            ]
            return [*system, *turns]
        case _:
            system = [("system", body["system"])] if "system" in body else []
            return system + [(turn["role"], content(turn["content"])) for turn in body["messages"]]


def content(value: Any) -> str:
    return value if isinstance(value, str) else "\n".join(part["text"] for part in value)


def error(status: int, message: str) -> Script:
    return Script((json.dumps({"error": {"message": message}}).encode(),), status, "application/json")


def call() -> Script:
    function = {"name": "get_weather", "arguments": PARIS}
    delta = {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": function}]}
    return Script((chunk(delta), chunk({}, finish="tool_calls"), b"data: [DONE]\n\n"))


class Switch:
    """One server for all tests of this module; each test selects the app that it serves."""

    def __init__(self) -> None:
        self.app: Any = None
        self.url = ""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


@pytest.fixture(scope="module")
def switch() -> Iterator[Switch]:
    switch = Switch()
    with uvicorn_server(switch, lifespan="off") as served:
        switch.url = served.url
        yield switch


@pytest.fixture
def serve(switch) -> Callable[[Any], str]:
    """Return a function that serves an app and returns its URL."""

    def start(app: Any) -> str:
        switch.app = app
        return str(switch.url)

    return start


async def found(url: str, model: str | None = None, *, key: str | None = None, **options: Any) -> Findings:
    upstream = UpstreamSettings(name="local", url=url, key=key)
    return await probe(upstream, model, **options)


def words(findings: Findings) -> dict[str, str]:
    return {taught.format: taught.word for taught in findings.formats}


# --- findings --------------------------------------------------------------------------------------------------------


@both
async def test_the_sample_model():
    asked: list[str] = []
    findings = await probe(UpstreamSettings(name="sample", url="sample"), watch=asked.append)
    assert findings.target == ProbeTarget("sample", "chat", "sample", ("sample",), ShownTemplate(""))
    assert findings.stream.word == "streamed"
    assert findings.tools.word == "ignored"
    assert findings.neighbours == findings.stop == ProbeAnswer("yes")
    assert findings.prefill == ProbeAnswer("no", "You said: The animal is called a zeb")
    assert set(findings.markers.values()) == {"yes"}
    assert findings.formats == tuple(Taught(name, "obeyed", 1) for name in ALL)
    assert (findings.format, findings.system_role, findings.requests) == ("invoke", True, 16)
    assert asked[:3] == ["protocol", "streaming", "native tools"]
    assert asked[-1] == "format object"


@both
async def test_a_server_with_all_capabilities(serve):
    upstream = ScriptedUpstream(Fake())
    findings = await found(serve(upstream))
    assert (findings.target.protocol, findings.target.model) == ("chat", "fake")
    assert findings.target.models == ("text-embed", "fake")
    assert findings.tools == ToolFindings("calls")
    assert findings.system == findings.neighbours == ProbeAnswer("yes")
    assert findings.prefill == findings.json_schema == findings.stop == ProbeAnswer("yes")
    assert findings.markers == dict.fromkeys(MARKERS, "yes")
    assert set(words(findings).values()) == {"obeyed"}
    assert findings.stream.pieces > 2
    assert 0 <= findings.stream.first < findings.stream.seconds  # rounded to 0 on a fast machine
    assert findings.requests == len(upstream.requests) == 18
    bodies = [request.json for request in upstream.requests if request.path == ASKED["chat"]]
    assert all(body["max_tokens"] <= 512 for body in bodies)


@both
async def test_a_server_without_tools(serve):
    findings = await found(serve(ScriptedUpstream(Fake(tools="denied", obeys=("fenced", "object"), can=False))))
    assert findings.tools == ToolFindings("denied", said="fake does not support tools")
    assert words(findings) == {
        **dict.fromkeys(("tool_call", "invoke", "qwen3_coder", "labelled"), "no call"),
        **dict.fromkeys(("fenced", "object"), "obeyed"),
    }
    assert findings.format == "fenced"
    assert findings.prefill == ProbeAnswer("no", "It is the zebra.")
    assert findings.json_schema == ProbeAnswer("no", "It is Paris.")
    assert findings.stop == ProbeAnswer("no", "1 2 3 4 5 6 7 8 9")


@both
async def test_a_call_that_leaks_into_the_text(serve):
    findings = await found(serve(ScriptedUpstream(Fake(tools="leaks"))))
    assert (findings.tools.word, findings.tools.format) == ("leaks", "tool_call")


@both
async def test_without_a_system_role_the_tool_prompt_is_in_the_first_message(serve):
    upstream = ScriptedUpstream(Fake(tools="ignored", system="refused"))
    findings = await found(serve(upstream))
    assert findings.system.word == "refused"
    assert not findings.system_role
    assert set(words(findings).values()) == {"obeyed"}
    assert [turn["role"] for turn in upstream.requests[-1].json["messages"]] == ["user"]


@both
async def test_roles_alternate_if_the_upstream_requires_it(serve):
    findings = await found(serve(ScriptedUpstream(Fake(tools="ignored", alternates=True))))
    assert findings.neighbours.word == "refused"
    assert findings.system_role
    assert set(words(findings).values()) == {"obeyed"}


@both
async def test_a_lost_system_message_is_detected_by_trying_without_one(serve):
    findings = await found(serve(ScriptedUpstream(Fake(system="lost", tools="ignored"))))
    assert findings.system.word == "no"
    assert not findings.system_role
    assert findings.format == "invoke"


@both
async def test_stripped_markers(serve):
    findings = await found(serve(ScriptedUpstream(Fake(strips=True))))
    assert [marker for marker, word in findings.markers.items() if word == "no"] == [
        "<|python_tag|>",
        "[TOOL_CALLS]",
        "<|tool_call_start|>",
        "<|channel|>",
    ]
    assert findings.markers["<tool_call>"] == "yes"


@both
@pytest.mark.parametrize("protocol", ["ollama", "messages", "gemini", "completions"])
async def test_the_protocol_is_detected(serve, protocol):
    findings = await found(serve(ScriptedUpstream(Fake(protocol, tools="ignored"))))
    assert findings.target.protocol == protocol
    assert findings.target.model == ("fake:8b" if protocol == "ollama" else "fake")
    assert findings.tools.word == ("none" if protocol == "completions" else "ignored")
    assert (findings.system, findings.prefill) == (ProbeAnswer("yes"), ProbeAnswer("yes"))
    assert findings.neighbours.word == "yes"
    assert set(words(findings).values()) == {"obeyed"}


@both
@pytest.mark.parametrize("protocol", ["chat", "ollama", "messages", "gemini", "completions"])
async def test_an_ignored_schema_is_reported(serve, protocol):
    for can, answer in ((True, ProbeAnswer("yes")), (False, ProbeAnswer("no", "It is Paris."))):
        upstream = ScriptedUpstream(Fake(protocol, can=can))
        findings = await found(serve(upstream))
        (asked,) = [request.body for request in upstream.requests if b"capital" in request.body]
        assert b'"additionalProperties":false' in asked.replace(b" ", b"")
        assert findings.json_schema == answer
        assert findings.forcing == ("schema" if can else None)


@both
async def test_an_upstream_that_does_not_stream(serve):
    findings = await found(serve(ScriptedUpstream(Fake(streams=False, tools="ignored"))))
    assert (findings.stream.word, findings.stream.pieces) == ("whole", 1)
    assert findings.format == "invoke"


@both
async def test_a_stream_that_arrives_all_at_the_same_time_is_buffered(serve):
    def at_once(request: Recorded) -> Script:
        script = Fake(tools="ignored")(request)
        return Script((b"".join(step for step in script.steps if isinstance(step, bytes)),), script.status)

    assert (await found(serve(ScriptedUpstream(at_once)))).stream.word == "buffered"


@both
async def test_an_upstream_without_a_token_limit_is_asked_without_one(serve):
    upstream = ScriptedUpstream(Fake(limits=False))
    findings = await found(serve(upstream))
    assert findings.format == "invoke"
    assert "max_tokens" not in upstream.requests[-1].json


@both
async def test_the_format_of_the_family_is_tried_first_and_each_as_often_as_requested(serve):
    upstream = ScriptedUpstream(Fake(tools="ignored", obeys=(*ALL, "glm45")))
    findings = await found(serve(upstream), "glm-4.6-air", tries=2)
    assert findings.target.model == "glm-4.6-air"
    assert [taught.format for taught in findings.formats] == ["glm45", *ALL]
    assert {(taught.obeyed, taught.tries) for taught in findings.formats} == {(2, 2)}
    assert findings.format == "glm45"


@both
async def test_native_calls_and_other_formats_do_not_count_as_the_taught_format(serve):
    def stubborn(request: Recorded) -> Script:
        if b"## Example" in request.body and b"\\n@get_weather" in request.body:
            return call()
        if b"## Example" in request.body:
            return dialects.said("chat", f"@get_weather {PARIS}")
        return Fake(tools="ignored")(request)

    findings = await found(serve(ScriptedUpstream(stubborn)))
    said = {taught.format: (taught.word, taught.said) for taught in findings.formats}
    assert said["tool_call"][0] == "other"
    assert findings.format is None


# --- errors ----------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("key", [None, "sk-wrong-4711"])
async def test_a_rejected_key(serve, key):
    url = serve(ScriptedUpstream(Fake(key="sk-right")))
    with pytest.raises(UpstreamRefused) as raised:
        await found(url, key=key)
    assert raised.value.status == 401
    assert raised.value.message == ("the upstream rejects the configured key" if key else "wrong key: nothing")


@both
async def test_a_key_echoed_by_the_upstream_is_redacted(serve):
    key = "sk-secret-4711"

    def telling(request: Recorded) -> Script:
        if request.path == ASKED["chat"] and "tools" in request.json:
            return error(400, f"no tools for {request.headers['authorization']}")
        return Fake()(request)

    findings = await found(serve(ScriptedUpstream(telling)), key=key)
    assert findings.tools == ToolFindings("refused", said="no tools for Bearer …")
    assert key not in repr(findings)


@both
async def test_an_unreachable_upstream():
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(UpstreamError, match="cannot be reached"):
        await probe(UpstreamSettings(name="x", url=url))


@both
async def test_a_website_is_not_a_model(serve):
    page = Script((b"<html><title>Welcome</title>",), content_type="text/html")
    with pytest.raises(StreamtoolError, match="web page") as raised:
        await found(serve(ScriptedUpstream(page)))
    assert not isinstance(raised.value, UpstreamError)
    with pytest.raises(StreamtoolError, match=r"no model responds at .*"):
        await found(serve(ScriptedUpstream(error(404, "not found"))))


@both
async def test_an_unknown_model_is_reported_in_the_upstreams_words(serve):
    def unknown(request: Recorded) -> Script:
        return Fake()(request) if not request.body else error(404, "there is no model nope")

    with pytest.raises(UpstreamRefused, match="there is no model nope"):
        await found(serve(ScriptedUpstream(unknown)), "nope")


@both
async def test_an_upstream_that_never_answers_times_out(serve):
    url = serve(ScriptedUpstream(Script((), before=(Hang(),))))
    with pytest.raises(UpstreamTimeout, match=r"took longer than 0\.2 seconds"):
        await found(url, seconds=0.2)


@both
async def test_an_upstream_that_falls_silent_is_abandoned_after_three_requests(serve):
    def tired(request: Recorded) -> Script:
        return (
            Script((), before=(Hang(),))
            if "words" in request.body.decode() or upstream_tired(request)
            else fake(request)
        )

    fake = Fake()
    seen: list[Recorded] = []

    def upstream_tired(request: Recorded) -> bool:
        seen.append(request)
        return len(seen) > 6

    with pytest.raises(UpstreamTimeout):
        await found(serve(ScriptedUpstream(tired)), seconds=0.2)


@both
async def test_an_upstream_that_dies_after_the_tool_prompt_is_abandoned_after_three_requests(serve):
    def mortal(request: Recorded) -> Script:
        return Script((b": so\n\n", Die())) if b"## Example" in request.body else Fake()(request)

    upstream = ScriptedUpstream(mortal)
    with pytest.raises(UpstreamError, match=r"the connection to the upstream at .* broke") as raised:
        await found(serve(upstream))
    assert not isinstance(raised.value, UpstreamRefused)
    assert sum(b"## Example" in request.body for request in upstream.requests) == 3


@both
async def test_a_single_failure_is_reported_and_probing_continues(serve):
    def limited(request: Recorded) -> Script:
        if b"saffron" in request.body:
            return error(429, "slow down")
        return Fake(tools="ignored")(request)

    findings = await found(serve(ScriptedUpstream(limited)))
    assert findings.system == ProbeAnswer("failed", "slow down")
    assert findings.system_role
    assert findings.format == "invoke"


# --- the settings ----------------------------------------------------------------------------------------------------


def settings_of(findings: Findings, key_env: str | None = None, url: str = "http://127.0.0.1:9") -> tuple[str, Any]:
    upstream = UpstreamSettings(name=name_of(url), url=url)
    text = settings_text(findings, upstream, key_env)
    return text, load(text, {"THE_KEY": "sk-secret"})


def findings(*, protocol: str = "chat", model: str = "fake", **fields: Any) -> Findings:
    answers = dict.fromkeys(("system", "neighbours", "prefill", "json_schema", "stop"), ProbeAnswer("yes"))
    given = {
        "target": ProbeTarget("http://127.0.0.1:9", protocol, model, None, ShownTemplate("")),
        "stream": Stream("streamed"),
        "tools": ToolFindings("ignored"),
        "markers": {},
        "formats": (Taught("invoke", "no call"), Taught("fenced", "obeyed", 1)),
        "system_role": True,
        "requests": 1,
        **answers,
    }
    return Findings(**(given | fields))


def test_the_settings_load_and_match_the_findings():
    text, settings = settings_of(findings(protocol="ollama", system_role=False), "THE_KEY")
    model = settings.for_model("fake")
    assert (model.protocol, model.mode, model.format, model.prompt.system_role) == (
        "ollama",
        "emulate",
        "fenced",
        False,
    )
    assert settings.upstreams["local"].key == "sk-secret"
    assert text == (
        '[upstream.local]\nurl = "http://127.0.0.1:9"\nprotocol = "ollama"\nkey = "env:THE_KEY"\n\n'
        '[[model]]\nmatch = "fake"\nupstream = "local"\nmode = "emulate"\nformat = "fenced"\n'
        'forcing = "schema"  # when a client demands a call\nsystem_role = false\n'
    )


@pytest.mark.parametrize(
    ("protocol", "schema", "prefill", "forcing"),
    [
        ("chat", "yes", "yes", "schema"),
        ("chat", "no", "yes", "prefill"),
        ("chat", "unclear", "refused", None),
        ("completions", "no", "yes", "prefill"),
        ("gemini", "no", "yes", None),
        ("gemini", "yes", "no", "schema"),
    ],
)
def test_the_forcing_method_is_set(protocol, schema, prefill, forcing):
    found = findings(protocol=protocol, json_schema=ProbeAnswer(schema), prefill=ProbeAnswer(prefill))
    text, settings = settings_of(found)
    assert settings.models[0].forcing == found.forcing == forcing
    assert ("forcing" in text) == (forcing is not None)


def test_a_model_with_native_calls_keeps_its_tools():
    for word in ("calls", "leaks"):
        _, settings = settings_of(findings(tools=ToolFindings(word, "mistral")))
        assert settings.for_model("fake").mode == "rescue"


def test_without_an_obeyed_format_none_is_set():
    text, settings = settings_of(findings(formats=(Taught("invoke", "no call"),)))
    assert "# no format was obeyed" in text
    assert settings.for_model("fake").format == "invoke"


def test_the_template_for_completions_is_set():
    _, settings = settings_of(findings(protocol="completions"))
    assert settings.for_model("fake").template == "chatml"


@pytest.mark.parametrize("name", ["org/Name-7B:q4*[x]?", 'a"b\\c', "new\nline\x7f\x85", "模型🌡"])
def test_every_model_name_is_matched_only_by_its_own_rule(name):
    _, settings = settings_of(findings(model=name))
    assert settings.for_model(name).format == "fenced"
    assert settings.for_model(f"{name}x").format == "invoke"
    assert "\n" not in toml(name)


def test_an_upstream_is_named_after_its_host():
    assert name_of("http://[::1]:80") == name_of("http://localhost") == name_of("http://127.0.0.9/v1") == "local"
    assert name_of("https://api.example-1.com/v1") == "api_example_1_com"
    assert name_of("sample") == "sample"


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def run(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))

    def command(*argv: str) -> tuple[int, str, str]:
        code = main(["probe", *argv])
        return code, *capsys.readouterr()

    return command


def test_the_command_prints_a_table_and_settings(run):
    code, out, err = run("sample")
    table, _, settings = out.partition("\n# Settings for this upstream\n")
    assert (code, err) == (0, "")
    assert "upstream            sample, speaks chat, lists 1 model\n" in table
    assert "format invoke       obeyed\n" in table
    assert "requests            16 sent\n" in table
    assert load(settings).for_model("sample").format == "invoke"


def test_the_command_prints_json(run, serve, monkeypatch):
    monkeypatch.setenv("THE_KEY", "sk-secret-4711")
    url = serve(ScriptedUpstream(Fake("ollama", tools="denied", key="sk-secret-4711")))
    code, out, err = run(url, "--key-env", "THE_KEY", "--json", "--protocol", "ollama", "--tries", "2")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["protocol"] == "ollama"
    assert found["tools"] == {"word": "denied", "format": None, "said": "fake does not support tools"}
    assert found["formats"][0] == {"format": "invoke", "word": "obeyed", "obeyed": 2, "tries": 2, "said": ""}
    assert load(found["settings"], {"THE_KEY": "x"}).upstreams["local"].key == "x"
    assert "sk-secret" not in out


@pytest.mark.parametrize("at", [b"pong", b"## Example"], ids=["at first", "behind the middleware"])
def test_an_interrupt_exits_with_130(serve, at):
    def waiting(request: Recorded) -> Script:
        return Script((), before=(Hang(),)) if at in request.body else Fake()(request)

    upstream = ScriptedUpstream(waiting)
    child = Forked(["probe", serve(upstream)], {**os.environ})
    wait_for(lambda: any(at in request.body for request in upstream.requests), "it waits", 20)
    child.send_signal(signal.SIGINT)
    assert child.communicate() == ("", "")
    assert child.returncode == 130


def test_text_of_an_upstream_cannot_control_the_terminal(run, serve):
    def rude(request: Recorded) -> Script:
        return error(400, "\x1b[2Jno \x07tools") if b'"tools"' in request.body else Fake()(request)

    code, out, _ = run(serve(ScriptedUpstream(rude)))
    assert code == 0
    assert "native tools        refused: ·[2Jno ·tools\n" in out


def test_the_exit_codes(run, serve, monkeypatch):
    monkeypatch.setenv("THE_KEY", "sk-secret-4711")
    closed = serve(ScriptedUpstream(Fake(key="other")))
    key = "(401: use --key-env to name the variable that holds the key)"
    assert run(closed) == (1, "", f"streamtool: wrong key: nothing {key}\n")
    refused = f"streamtool: the upstream rejects the configured key {key}\n"
    assert run(closed, "--key-env", "THE_KEY") == (1, "", refused)
    port = free_port()
    absent = f"http://127.0.0.1:{port}"
    assert run(absent) == (3, "", f"streamtool: the upstream at 127.0.0.1:{port} cannot be reached; is it running?\n")
    assert run("ftp://x")[0] == run("sample", "--protocol", "morse")[0] == run()[0] == 2
    assert run("sample", "--key-env", "NONE") == (
        2,
        "",
        "streamtool: --key-env: the environment variable NONE is not set\n",
    )
