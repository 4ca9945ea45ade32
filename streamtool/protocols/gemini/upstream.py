"""Writer for the request bodies of Gemini's `generateContent`.

The roles `user` and `model` alternate: adjacent turns with the same role are merged. Leading system messages become the
`systemInstruction`; later ones become part of the user's turn, because the protocol cannot express them in any other
way. Empty turns are omitted. Results are `functionResponse` parts of the user's turn and name the function. A call is
sent with its original signature. Gemini 3 and later models reject a call without a signature; if the signature is
unknown because another model made the call or the client dropped the signature, the placeholder that the protocol
defines for this case is sent. Among parallel calls, only the first has a signature. Source: the FAQ in the guide to
thought signatures.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import quote

from streamtool.core.conversation import (
    CUSTOM_TOOL_SCHEMA,
    Conversation,
    MediaPart,
    Message,
    Options,
    Part,
    TextPart,
    Tool,
    ToolChoice,
    ToolResult,
)
from streamtool.core.errors import RequestError
from streamtool.core.json_value import Json
from streamtool.protocols.options import writing
from streamtool.protocols.shared import wire
from streamtool.settings import ModelSettings

HEADERS: Final[tuple[tuple[bytes, bytes], ...]] = ()
"""Headers to send with every request."""
KEY_HEADER: Final = b"x-goog-api-key"
"""Header that carries the API key."""
MODELS_PATH: Final = "/v1beta/models"

_OURS: Final = frozenset({"model", "contents", "systemInstruction", "generationConfig", "tools", "toolConfig"})
"""Body fields built from the conversation; all others are forwarded."""
_FORMAT: Final = frozenset({"responseMimeType", "responseSchema", "responseJsonSchema"})
"""Fields of `generationConfig` that define the format of the reply."""
_PREFIX: Final = "models/"
_OPTIONS: Final = writing("gemini")
_BUDGETS: Final = {"none": 0, "minimal": 512, "low": 1024, "medium": 8192, "high": 24576, "xhigh": 24576}
"""Reasoning budgets in tokens, by effort. Every thinking model accepts a budget, but only some accept a level."""
_SIGNING: Final = re.compile(r"(?:models/)?gemini-(?:[3-9]|[a-z-]+-latest$)")
"""Names of models that require signed calls."""
_PLACEHOLDER_SIGNATURE: Final = "skip_thought_signature_validator"
"""Signature sent in place of an unknown one."""


def request_path(model: ModelSettings, *, stream: bool) -> str:
    """Return the request path."""
    return f"{_model_path(model)}:" + ("streamGenerateContent?alt=sse" if stream else "generateContent")


def _model_path(model: ModelSettings) -> str:
    """Return the model's path."""
    return f"{MODELS_PATH}/{quote(model.name.removeprefix(_PREFIX), safe='')}"


def read_models(body: bytes) -> list[str]:
    """Return the names in the model list. Raises ValueError if the body is not a model list."""
    match wire.decode_tolerant(body):
        case {"models": [*items]}:
            names = [item.get("name") for item in items if isinstance(item, dict)]
            return [name.removeprefix(_PREFIX) for name in names if isinstance(name, str)]
    raise ValueError("not a list of models")


def write_request(conversation: Conversation, model: ModelSettings, *, stream: bool) -> bytes:  # noqa: ARG001  the path selects streaming
    """Return the JSON body of the request for the next reply."""
    raw = conversation.raw if conversation.protocol == "gemini" else {}
    if raw and not conversation.messages:  # the request could not be parsed
        return wire.encode_request(raw)
    if not conversation.messages:
        raise RequestError("A request to Gemini must contain at least one message.", param="messages")
    system, contents = _turns(conversation.messages, model, same=bool(raw))
    body: dict[str, Json] = {"contents": contents, **{key: raw[key] for key in raw.keys() - _OURS}}
    if system:
        body["systemInstruction"] = system
    config = _config(conversation, raw)
    if config:
        body["generationConfig"] = config
    if conversation.tools and raw:
        body.update((key, raw[key]) for key in ("tools", "toolConfig") if key in raw)
    elif conversation.tools:
        body.update(_tools(conversation.tools, conversation.choice))
    return wire.encode_request(body)


def count_path(model: ModelSettings) -> str:
    """Return the path of token-counting requests."""
    return f"{_model_path(model)}:countTokens"


def write_count_request(conversation: Conversation, model: ModelSettings) -> bytes:
    """Return the JSON body of a request to count the conversation's tokens."""
    name = _PREFIX + model.name.removeprefix(_PREFIX)
    asked = wire.decode(write_request(conversation, model, stream=False))
    return wire.encode_request({"generateContentRequest": {**asked, "model": name}})


def read_count_reply(body: bytes) -> int | None:
    """Return the number of tokens, or None if the upstream did not report it."""
    return wire.count_in(body, "totalTokens")


def _turns(messages: Sequence[Message], model: ModelSettings, *, same: bool) -> tuple[Json, list[dict[str, Json]]]:
    """Return the value of `systemInstruction`, and the turns. `same` means that the conversation was read from this
    protocol; its unmodified messages are written verbatim.
    """
    leading = next((i for i, message in enumerate(messages) if message.role != "system"), len(messages))
    system: Json = None
    if leading == 1 and same and messages[0].raw:
        system = messages[0].raw[0]["systemInstruction"]
    elif leading:
        system = {"parts": [part for message in messages[:leading] for part in _parts(message.content)]}
    names = {call.id: call.name for message in messages for call in message.calls}
    unsigned = _PLACEHOLDER_SIGNATURE if _SIGNING.match(model.name) else None
    contents: list[dict[str, Json]] = []
    own = False  # whether the last turn is verbatim
    for message in messages[leading:]:
        before, own = own, same and bool(message.raw)
        turns = message.raw if own else ({"parts": list(_message(message, names, unsigned))},)
        for turn in turns:
            role = turn.get("role") or ("model" if message.role == "assistant" else "user")
            if contents and contents[-1]["role"] == role and not (own and before):
                contents[-1] = {"role": role, "parts": [*contents[-1]["parts"], *turn.get("parts", ())]}
                own = False
            elif own or turn["parts"]:
                contents.append({**turn, "role": role})
    if contents:
        return system, contents
    asked = system["parts"] if system and "parts" in system else []
    return None, [{"role": "user", "parts": asked}]  # the protocol requires a user turn


def _config(conversation: Conversation, raw: Mapping[str, Json]) -> dict[str, Json]:
    options, schema = conversation.options, _schema(conversation)
    given = {key: value for key, value in (raw.get("generationConfig") or {}).items() if key != "stopSequences"}
    formatted = options.output is not None or schema is not None
    if given and (conversation.forcing is not None or not formatted):
        given = {key: value for key, value in given.items() if key not in _FORMAT}
    fields = wire.write_options(options, _OPTIONS)
    if _FORMAT.isdisjoint(given):
        fields["responseMimeType"] = "application/json" if formatted else None
        fields["responseJsonSchema"] = schema
    if not raw:
        fields["thinkingConfig"] = _thinking(options)
    return {**given, **{key: value for key, value in fields.items() if value is not None}}


def _schema(conversation: Conversation) -> Json:
    """Return the JSON Schema that the entire reply must match, if there is one."""
    if conversation.forcing is not None and conversation.forcing.way == "schema":
        return conversation.forcing.value
    output = conversation.options.output
    return None if output is None else output.schema


def _thinking(options: Options) -> dict[str, Json] | None:
    if options.effort is None:
        return None
    budget = _BUDGETS.get(options.effort, _BUDGETS["medium"])
    return {"thinkingBudget": budget, "includeThoughts": True} if budget else {"thinkingBudget": 0}


def _tools(tools: Sequence[Tool], choice: ToolChoice) -> dict[str, Json]:
    """Return the tools and the calling mode. If the tool choice names tools, all other tools are omitted."""
    declared: list[Json] = []
    for tool in tools:
        if choice.names and tool.name not in choice.names:
            continue
        declaration: dict[str, Json] = {"name": tool.name, "description": tool.description}
        parameters = CUSTOM_TOOL_SCHEMA if tool.custom else tool.parameters
        if parameters is not None:
            declaration["parametersJsonSchema"] = parameters
        declared.append(declaration)
    mode = {"auto": "AUTO", "none": "NONE", "required": "ANY"}[choice.mode]
    return {
        "tools": [{"functionDeclarations": declared}],
        "toolConfig": {"functionCallingConfig": {"mode": mode}},
    }


# --- a message


def _message(message: Message, names: Mapping[str, str], unsigned: str | None) -> Iterator[dict[str, Json]]:
    """Yield the parts for one message; `names` maps call ids to function names.

    `unsigned` is the signature for the first call if that call has none.
    """
    for result in message.results:
        yield from _result(result, result.name or names.get(result.id, result.id))
    yield from _parts(message.content)
    for number, call in enumerate(message.calls):
        signature = call.signature or (None if number else unsigned)
        signed = {} if signature is None else {"thoughtSignature": signature}
        yield {"functionCall": {"id": call.id, "name": call.name, "args": wire.arguments_of(call)}, **signed}


def _result(result: ToolResult, name: str) -> Iterator[dict[str, Json]]:
    """Yield the parts for a result: its text under the `output` or `error` key, followed by its media."""
    text = "\n".join(part.text for part in result.content if isinstance(part, TextPart))
    response = {"error" if result.error else "output": text}
    yield {"functionResponse": {"id": result.id, "name": name, "response": response}}
    yield from _parts([part for part in result.content if isinstance(part, MediaPart)])


def _parts(parts: Sequence[Part]) -> Iterator[dict[str, Json]]:
    for part in parts:
        match part:
            case TextPart(text=""):
                pass  # rejected by the API
            case TextPart():
                yield {"text": part.text}
            case MediaPart() if part.data and part.type:
                yield {"inlineData": {"mimeType": part.type, "data": part.data}}
            case MediaPart() if part.url:
                file = {"mimeType": part.type, "fileUri": part.url}
                yield {"fileData": {key: value for key, value in file.items() if value}}
            case MediaPart():
                yield {"text": f"[{part.kind}]"}
