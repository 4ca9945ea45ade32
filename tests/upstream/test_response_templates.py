"""Response templates from settings and files: their formats are taught, streamed, forced and kept in the history."""

import json
import logging
from typing import Any

import pytest
from support.response_templates import NAMED, TEMPLATES, template

from statemachine import FORMATS
from streamtool.core.errors import SettingsError
from streamtool.middleware import ToolMiddleware
from streamtool.settings import ModelSettings, Settings
from streamtool.settings.load import load
from streamtool.testing import ScriptedUpstream, stream_asgi, text
from streamtool.upstream.chat_templates import ChatTemplates

both = pytest.mark.anyio
PATH = "/v1/chat/completions"
FIND = {
    "type": "function",
    "function": {
        "name": "find_bird",
        "parameters": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    },
}
ASKED = {"model": "some-model", "stream": True, "messages": [{"role": "user", "content": "A coot?"}], "tools": [FIND]}
PLAIN = TEMPLATES["json_in_tags"]
"""A template whose format is ordinary text."""
SPECIAL = TEMPLATES["json_with_paths"]
"""A template whose format uses special tokens."""
UNSUPPORTED = template({"open": "<act>", "close": "</act>", "content": "kv-lines"})


def of(settings: Settings, model: str = "some-model") -> ModelSettings:
    """Return the settings for a model, once its templates are known."""
    found = settings.for_model(model)
    return found.with_template(ChatTemplates(settings).of(found))


def config(folder: Any, **fields: Any) -> str:
    """Write a tokenizer_config.json with these fields, and return its path."""
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 8, **fields}))
    return str(folder / "tokenizer_config.json")


def test_a_template_is_read_from_a_file_a_folder_or_the_settings(tmp_path: Any):
    (tmp_path / "alone.json").write_text(json.dumps(PLAIN))
    path = config(tmp_path, response_template=PLAIN)
    found = [of(Settings(response_template=one)) for one in (path, str(tmp_path), str(tmp_path / "alone.json"), PLAIN)]
    assert len({model.format for model in found}) == 1
    assert {model.training.reason for model in found} == {"from the response template"}


def test_a_template_may_be_a_table_of_the_settings_file():
    settings = load(
        """
        [response_template]
        start_anchor = "<|bot|>"
        [response_template.fields.content]
        [response_template.fields.tool_calls]
        open = "<act>"
        close = "</act>"
        content = "json"
        transform.function = "{content}"
        """
    )
    assert of(settings).format.startswith("response_template_")
    assert Settings(response_template=settings.response_template) == settings


def test_special_tokens_are_taught_only_if_a_setting_demands_it():
    found = of(Settings(response_template=SPECIAL))
    own = (found.listened_formats or ())[-1]
    assert found.format == "invoke"
    assert found.training.reason == f"from the response template, whose format, {own}, uses special tokens"
    found = of(Settings(response_template=SPECIAL, format="response_template"))
    assert (found.format, found.training.reason) == (own, "by setting")


def test_other_formats_are_recognized_unless_they_look_alike():
    look_alike = template({"open": "<tool_call>", "close": "</tool_call>", "content": "json", "transform": {
        "function": {"name": "{content.op}", "arguments": "{content.with}"}}})  # fmt: skip
    listened = of(Settings(response_template=look_alike)).listened_formats or ()
    assert "tool_call" not in listened
    assert {"invoke", "glm45", "qwen3_coder"} <= set(listened)
    calls = {
        "open_pattern": r"<\|call\|>\s*<do=(?P<name>\w+)>",
        "close": "<|done|>",
        "content": "json",
        "transform": NAMED,
    }
    listened = of(Settings(response_template=template(calls))).listened_formats or ()
    assert "harmony" not in listened, "its calls end with <|call|>"
    only = of(Settings(response_template=PLAIN, formats=("invoke",)))
    assert only.listened_formats == ("invoke", only.format)


def test_a_rule_takes_precedence(tmp_path: Any):
    settings = Settings(
        response_template=config(tmp_path, response_template=PLAIN),
        models=[
            {"match": "special*", "response_template": SPECIAL, "format": "response_template"},
            {"match": "none*", "response_template": "none"},
            {"match": "set*", "format": "tag"},
        ],
    )
    formats = [of(settings, name).format for name in ("special-1", "none-1", "set-1", "other")]
    own = of(Settings(response_template=SPECIAL, format="response_template")).format
    assert formats == [own, "invoke", "tag", of(Settings(response_template=PLAIN)).format]


def test_a_template_next_to_the_chat_template_is_used(tmp_path: Any):
    (tmp_path / "chat_template.jinja").write_text("[TOOL_CALLS]")
    config(tmp_path, response_template=PLAIN)
    assert of(Settings(chat_template=str(tmp_path))).training.reason == "from the response template"
    ignored = of(Settings(chat_template=str(tmp_path), response_template="none"))
    assert ignored.training.reason.startswith("from the template: contains `[TOOL_CALLS]`")


def test_a_template_that_nothing_asks_for_is_only_logged(tmp_path: Any, caplog: pytest.LogCaptureFixture):
    config(tmp_path, chat_template="[TOOL_CALLS]", response_template=UNSUPPORTED)
    with caplog.at_level(logging.WARNING, "streamtool"):
        assert of(Settings(chat_template=str(tmp_path))).format == "invoke"
    assert "is not used: field 'tool_calls'" in caplog.text


def test_the_model_begins_inside_the_reasoning_if_the_template_does():
    assert of(Settings(response_template=TEMPLATES["opened_in_prompt"])).opener() == "<muse>"
    closed = of(Settings(response_template=TEMPLATES["opened_if_closed"]))
    assert (closed.opener(), closed.opener(thinking=True)) == ("", "<muse>")
    assert of(Settings(response_template=PLAIN)).opener() == ""


def test_the_formats_of_all_rules_are_compiled_at_startup():
    settings = Settings(response_template=PLAIN, models=[{"match": "x*", "response_template": SPECIAL}, {"match": "y"}])
    found = list(ChatTemplates(settings).listened_formats())
    assert found == [of(settings, name).listened_formats for name in ("", "x1", "y")]
    assert list(ChatTemplates(Settings()).listened_formats()) == []


WRONG = {
    "no file": (None, "cannot be read: No such file or directory"),
    "no JSON": (b"{", "is not JSON"),
    "the older schema": (b'{"response_schema": {"x-regex": "(?P<content>.*)"}}', "contains no response_template"),
    "not supported": (json.dumps({"response_template": UNSUPPORTED}).encode(), "field 'tool_calls': "),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_unusable_template_is_a_settings_error(tmp_path: Any, name: str):
    content, reason = WRONG[name]
    path = tmp_path / "tokenizer_config.json"
    if content is not None:
        path.write_bytes(content)
    for settings, place in (
        (Settings(response_template=str(path)), "response_template"),
        (Settings(models=[{"match": "x", "response_template": str(path)}]), "model[0].response_template"),
    ):
        with pytest.raises(SettingsError) as raised:
            ToolMiddleware(ScriptedUpstream(text("Hi.")), settings=settings)
        assert raised.value.param == place
        assert reason in raised.value.message


def test_an_unsupported_template_in_the_settings_is_a_settings_error():
    with pytest.raises(SettingsError) as raised:
        Settings(response_template=UNSUPPORTED)
    assert (raised.value.param, raised.value.code) == ("response_template", "unsupported_response_template")


def test_a_format_without_a_template_is_a_settings_error():
    with pytest.raises(SettingsError, match="no response_template is known"):
        ToolMiddleware(ScriptedUpstream(text("Hi.")), format="response_template")


# --- exchanges -------------------------------------------------------------------------------------------------------

CALL = '<|perform|>{"op": "find_bird", "with": {"name": "coot"}}<|performed|>'


async def reply_of(app: Any, headers: tuple[tuple[bytes, bytes], ...] = (), **fields: Any) -> tuple[Any, list[Any]]:
    """Return the reply's headers and its deltas."""
    async with stream_asgi(app, PATH, body=json.dumps({**ASKED, **fields}).encode(), headers=headers) as reply:
        body = (await reply.body()).decode()
    events = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: {")]
    return reply.headers, [choice["delta"] for event in events for choice in json.loads(event)["choices"]]


def calls_of(deltas: list[Any]) -> tuple[list[str], str]:
    functions = [call["function"] for delta in deltas for call in delta.get("tool_calls") or ()]
    names = [function["name"] for function in functions if function.get("name")]
    return names, "".join(function.get("arguments", "") for function in functions)


@both
async def test_the_format_is_taught_and_streamed():
    upstream = ScriptedUpstream(text(*(f"I look.{CALL}"[i : i + 3] for i in range(0, len(CALL) + 7, 3))))
    app = ToolMiddleware(upstream, response_template=SPECIAL, format="response_template")
    headers, deltas = await reply_of(app)
    assert headers["x-streamtool-format"].startswith("response_template_")
    assert calls_of(deltas) == (["find_bird"], '{"name": "coot"}')
    assert "".join(delta.get("content") or "" for delta in deltas) == "I look."
    assert sum(1 for delta in deltas if delta.get("tool_calls")) > 2
    assert '<|perform|>{"op": "find_bird", "with": {' in upstream.requests[0].body.decode().replace('\\"', '"')


@both
async def test_past_calls_are_written_in_the_format():
    upstream = ScriptedUpstream(text("A coot."))
    app = ToolMiddleware(upstream, response_template=SPECIAL, format="response_template")
    function = {"name": "find_bird", "arguments": '{"name": "coot"}'}
    past = [
        *ASKED["messages"],
        {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "a", "content": "found"},
    ]
    await reply_of(app, messages=past)
    assert CALL in json.loads(upstream.requests[0].body)["messages"][-2]["content"]


@both
@pytest.mark.parametrize(
    ("method", "field"),
    [("guided", "structured_outputs"), ("structural_tag", "response_format"), ("grammar", "grammar")],
)
async def test_calls_are_forced_in_the_format(method: Any, field: str):
    upstream = ScriptedUpstream(text(CALL))
    app = ToolMiddleware(upstream, response_template=SPECIAL, format="response_template", app_forcing=method)
    _, deltas = await reply_of(app, tool_choice="required")
    assert calls_of(deltas) == (["find_bird"], '{"name": "coot"}')
    sent = json.loads(upstream.requests[0].body)
    assert "op" in json.dumps(sent[field])


@both
async def test_a_header_may_choose_the_format_of_the_response_template():
    app = ToolMiddleware(ScriptedUpstream(text("Hi.")), response_template=SPECIAL, allow_overrides=True)
    headers, _ = await reply_of(app, ((b"x-streamtool-format", b"response_template"),))
    assert headers["x-streamtool-format"] not in FORMATS
    app = ToolMiddleware(ScriptedUpstream(text("Hi.")), allow_overrides=True)
    body = json.dumps(ASKED).encode()
    async with stream_asgi(app, PATH, body=body, headers=((b"x-streamtool-format", b"response_template"),)) as reply:
        assert "no response_template is known for some-model" in (await reply.body()).decode()
    assert reply.status == 400


# --- reasoning without a closer --------------------------------------------------------------------------------------


def test_a_call_ends_reasoning_if_the_template_says_so():
    thought = {"open": "<muse>", "close_pattern": r"</muse>|(?=<act>)"}
    call = {"open": "<act>", "close": "</act>", "content": "json", "transform": {"function": "{content}"}}
    known = template(call, reasoning_content=thought)
    model = of(Settings(response_template=known))
    assert model.calls_in_reasoning == (model.format,)
    assert of(Settings(response_template=known, calls_in_reasoning=False)).calls_in_reasoning is False
