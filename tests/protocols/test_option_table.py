"""The table of options: it is complete, no option is lost silently, and its spellings are those of the official SDKs."""

import json
import typing
from itertools import product
from typing import Any

import pytest
from anthropic.types import MetadataParam, OutputConfigParam, message_create_params
from attrs import fields
from google.genai import types as genai_types
from ollama import _types
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import ResponseTextConfigParam, response_create_params
from openai.types.shared_params import Reasoning
from support.dialects import ALL_CLIENTS, UPSTREAMS, Ask, write
from support.sweeps import each

from streamtool.core.conversation import Options
from streamtool.core.errors import RequestError
from streamtool.exchange.exchange import Exchange
from streamtool.exchange.record import Record
from streamtool.protocols.options import (
    CONTAINERS,
    OPTIONS,
    SPANS,
    Absent,
    Option,
    OptionKind,
    OptionPlace,
    Sides,
    Spelling,
    client_paths,
)
from streamtool.protocols.registry import CLIENT_NAMES, CLIENTS, UPSTREAM_NAMES
from streamtool.settings import Settings

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
BUDGET = {"thinkingBudget": 2000}

SENT: dict[str, dict[str, Any]] = {
    "effort": {"chat": "low", "messages": "low", "responses": "low", "ollama": "low", "gemini": BUDGET},
    "thinking": {"chat": {"enable_thinking": True}, "ollama": True, "gemini": BUDGET},
    "output": {
        "chat": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}},
        "messages": {"type": "json_schema", "schema": SCHEMA},
        "responses": {"type": "json_schema", "name": "answer", "schema": SCHEMA},
        "ollama": SCHEMA,
        "gemini": "application/json",
    },
}
"""Values of options that each client protocol's own code reads."""
ARRIVED: dict[str, dict[str, Any]] = {
    "effort": {
        "chat": "low",
        "messages": "low",
        "responses": "low",
        "ollama": True,
        "gemini": {"thinkingBudget": 1024, "includeThoughts": True},
    },
    "output": {
        "chat": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": False}},
        "messages": {"type": "json_schema", "schema": SCHEMA},
        "responses": {"type": "json_schema", "name": "answer", "schema": SCHEMA, "strict": False},
        "ollama": SCHEMA,
        "gemini": "application/json",
    },
}
"""The same values, as each upstream protocol's own code writes them."""
WITH = {("output", "gemini"): {("generationConfig", "responseJsonSchema"): SCHEMA}}
"""Further fields that a client sends with an option."""
PLAIN = {OptionKind.NUMBER: 0.25, OptionKind.WHOLE: 7, OptionKind.TEXT: "someone", OptionKind.TEXTS: ["END"]}
"""Values of all other options."""


def put(body: dict[str, Any], where: tuple[str, ...], value: Any) -> None:
    for key in where[:-1]:
        body = body.setdefault(key, {})
    body[where[-1]] = value


def at(body: Any, where: tuple[str, ...]) -> Any:
    for key in where:
        body = body.get(key) if isinstance(body, dict) else None
    return body


# --- complete ---------------------------------------------------------------------------------------------------------


def test_every_row_has_a_place_or_a_reason_for_each_protocol():
    missing = [
        f"{option.name} × {protocol}"
        for option in OPTIONS
        for protocol in UPSTREAM_NAMES
        if protocol not in option.spelled
    ]
    assert not missing, f"options without a spelling: {', '.join(missing)}; add one, or UNSUPPORTED"


def test_no_row_names_an_unknown_protocol():
    assert {protocol for option in OPTIONS for protocol in option.spelled} == set(UPSTREAM_NAMES)


def test_every_field_of_options_has_a_row():
    rows = {option.name for option in OPTIONS if not option.sampling}
    known = {field.name for field in fields(Options)} - {"sampling"}
    assert rows == known, f"without a row: {sorted(known - rows)}; without a field: {sorted(rows - known)}"


def test_names_are_unique():
    assert len({option.name for option in OPTIONS}) == len(OPTIONS)
    assert len(SPANS) == len(set(SPANS.values()))


def test_every_structure_has_examples():
    missing = [
        f"{option.name} × {client}"
        for option in OPTIONS
        for client in ALL_CLIENTS
        if option.kind is OptionKind.OWN and paths(option, client) and client not in SENT.get(option.name, {})
    ]
    assert not missing, f"add to SENT: {', '.join(missing)}"


# --- nothing is lost silently -----------------------------------------------------------------------------------------


def paths(option: Option, client: str) -> tuple[tuple[str, ...], ...]:
    """Return where the client sends the option; older spellings of a structure have another form."""
    place = option.client(client)
    if not isinstance(place, Spelling):
        return ()
    return (place.path,) if option.kind is OptionKind.OWN else (place.path, *place.also)


def ask(client: str, upstream: str, fields: dict[tuple[str, ...], Any], *, tools: bool = False) -> tuple[Any, Record]:
    """Return the body that the upstream gets, and the record of the exchange, for a body with these fields."""
    body = write(client, Ask((("user", "hi"),), (("ping", "Pings.", SCHEMA),) if tools else ()))
    body["model"] = "m"
    for where, value in fields.items():
        put(body, where, value)
    settings = Settings(app_protocol=upstream)
    exchange = Exchange(settings, CLIENTS[client], json.dumps(body).encode(), (), new_id=str, now=1)
    sent = exchange.request()
    return json.loads(sent.body), exchange.record()


def shared_with_one_that_arrives(where: tuple[str, ...], client: str, upstream: str) -> bool:
    return any(
        isinstance(option.upstream(upstream), Spelling) for option, path_ in client_paths(client) if path_ == where
    )


@pytest.mark.parametrize("upstream", UPSTREAMS)
@pytest.mark.parametrize("client", ALL_CLIENTS)
@each("option, tools", product(OPTIONS, (False, True)), lambda one: getattr(one, "name", one))
def test_an_option_arrives_or_is_reported(option: Option, client: str, upstream: str, tools: bool):
    to = option.upstream(upstream)
    for where in paths(option, client):
        value = SENT[option.name][client] if option.kind is OptionKind.OWN else PLAIN[option.kind]
        if to is Absent.REJECTED and client != upstream:
            with pytest.raises(RequestError):
                ask(client, upstream, {where: value}, tools=tools)
            continue
        got, record = ask(client, upstream, {where: value, **WITH.get((option.name, client), {})}, tools=tools)
        noted = f"field {'.'.join(where)}" in record.dropped
        if option.sampling:
            assert (option.name, value) in record.options
        if (option.applied and (tools or client != upstream)) or (option.prompted and tools):
            assert not noted
            assert upstream == "completions" or not isinstance(to, Spelling) or at(got, to.path) is None
        elif client == upstream:
            assert at(got, where) == value
        elif isinstance(to, Spelling):
            expected = ARRIVED[option.name][upstream] if option.kind is OptionKind.OWN else value
            assert at(got, to.path) == expected, f"{option.name} from {client} does not reach {upstream}"
            assert not noted
        else:
            arrives = shared_with_one_that_arrives(where, client, upstream)
            assert noted != arrives, f"{option.name} from {client} is lost silently on its way to {upstream}"


def test_null_is_the_same_as_an_absent_field():
    assert ask("chat", "messages", {("seed",): None})[1].dropped == ()


@pytest.mark.parametrize(
    ("client", "upstream", "where", "value", "note"),
    [
        ("ollama", "chat", "options.mirostat", 1, "field options.mirostat"),
        ("ollama", "chat", "options.num_ctx", 4096, None),
        ("ollama", "chat", "options.of_tomorrow", 1, "field options.of_tomorrow"),
        ("gemini", "chat", "generationConfig.speech_config", {}, "field generationConfig.speechConfig"),
        ("chat", "messages", "response_format", {"type": "json_object"}, "field response_format"),
        ("chat", "ollama", "response_format", {"type": "json_object"}, None),
    ],
)
def test_members_and_forms_that_do_not_arrive_are_reported(client, upstream, where, value, note):
    _, record = ask(client, upstream, {tuple(where.split(".")): value})
    assert record.dropped == (() if note is None else (note,))


def test_top_p_next_to_a_temperature_is_reported_where_only_one_is_taken():
    got, record = ask("chat", "messages", {("temperature",): 0.5, ("top_p",): 0.9})
    assert "top_p" not in got
    assert record.dropped == ("field top_p",)


# --- spelled as in the SDKs -------------------------------------------------------------------------------------------


def typed(*kinds: Any) -> set[tuple[str, ...]]:
    return {(name,) for kind in kinds for name in typing.get_type_hints(kind, include_extras=True)}


def modelled(kind: Any) -> set[tuple[str, ...]]:
    return {(field.alias or name,) for name, field in kind.model_fields.items()}


def inside(parent: str, members: set[tuple[str, ...]]) -> set[tuple[str, ...]]:
    return {(parent, *member) for member in members}


SDKS: dict[str, set[tuple[str, ...]]] = {
    "chat": typed(chat_create_params.CompletionCreateParamsStreaming),
    "messages": typed(message_create_params.MessageCreateParamsStreaming)
    | inside("metadata", typed(MetadataParam))
    | inside("output_config", typed(OutputConfigParam))
    | {("temperature",), ("top_p",), ("top_k",), ("output_format",)},  # of older SDKs
    "responses": typed(response_create_params.ResponseCreateParamsStreaming)
    | inside("reasoning", typed(Reasoning))
    | inside("text", typed(ResponseTextConfigParam)),
    "ollama": modelled(_types.ChatRequest) | inside("options", modelled(_types.Options)),
    "gemini": inside("generationConfig", modelled(genai_types.GenerationConfig)),
    "completions": typed(completion_create_params.CompletionCreateParamsStreaming),
}
EXTENSIONS: dict[str, set[tuple[str, ...]]] = {
    "chat": {("top_k",), ("min_p",), ("repetition_penalty",), ("chat_template_kwargs",)},
    "ollama": {("options", "min_p")},
}
"""Fields of engines: vLLM's `ChatCompletionRequest`, the server of llama.cpp, `api.Options` of Ollama's server."""


def places(option: Option, protocol: str) -> list[OptionPlace]:
    found = option.spelled.get(protocol, Absent.UNSUPPORTED)
    return [found.client, found.upstream] if isinstance(found, Sides) else [found]


@pytest.mark.parametrize("protocol", UPSTREAM_NAMES)
def test_every_spelling_is_one_of_the_sdk_or_an_extension(protocol: str):
    for option in OPTIONS:
        for place in places(option, protocol):
            for where in (place.path, *place.also) if isinstance(place, Spelling) else ():
                known = EXTENSIONS.get(protocol, set()) if place.extension else SDKS[protocol]
                assert where in known, f"{option.name}: {protocol} has no {'.'.join(where)}"
                assert not place.extension or where not in SDKS[protocol], f"{where} is not an extension any more"


def test_every_protocol_of_the_registry_is_in_the_matrix():
    assert set(CLIENT_NAMES) == set(ALL_CLIENTS)
    assert set(UPSTREAM_NAMES) == set(UPSTREAMS) == set(SDKS)
    assert set(CONTAINERS) <= set(UPSTREAM_NAMES)
