"""Writes a `Conversation` as the body of a request to Gemini's `generateContent`.

The roles are `user` and `model`, and they alternate: neighbours of one role become one. What the system says before
anybody else is the `systemInstruction`; what it says later is a part of the user's turn, because there is no other
place for it. A turn that says nothing is left out. Results are `functionResponse` parts of the user's turn, and name
the function. A call goes back with the signature that it came with. Models from Gemini 3 on refuse one without; where
nobody knows it (another model made the call, a client has lost it), a word takes its place that the protocol has for
that. Of calls that are made at once only the first bears a signature.
Source: the guide to thought signatures (its questions at the end).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from streamtool.conversation import (
    Conversation,
    MediaPart,
    Message,
    Options,
    Part,
    TextPart,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
)
from streamtool.errors import RequestError
from streamtool.protocols import wire
from streamtool.protocols.gemini.parts import camel
from streamtool.settings import ModelSettings

Json = Any  # a decoded JSON value

HEADERS: Final[tuple[tuple[bytes, bytes], ...]] = ()
"""What every request bears."""
KEY_HEADER: Final = b"x-goog-api-key"
"""The header that bears the key."""
MODELS_PATH: Final = "/v1beta/models"

_OURS: Final = frozenset({"model", "contents", "systemInstruction", "generationConfig", "tools", "toolConfig"})
"""Fields that are written from the conversation."""
_FORMAT: Final = frozenset({"responseMimeType", "responseSchema", "responseJsonSchema"})
"""Fields of `generationConfig` that say which form the answer has."""
_PREFIX: Final = "models/"
_STOPS: Final = 5
"""Stop sequences that are taken; the exchange looks for all of them in any case."""
_BUDGETS: Final = {"none": 0, "minimal": 512, "low": 1024, "medium": 8192, "high": 24576, "xhigh": 24576}
"""Tokens of reasoning; every thinking model takes a budget, only some take a level."""
_SIGNING: Final = re.compile(r"(?:models/)?gemini-(?:[3-9]|[a-z-]+-latest$)")
"""Names of models that want their calls signed."""
_UNSIGNED: Final = "skip_thought_signature_validator"
"""Stands for a signature that is not known."""
_CUSTOM: Final = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
"""The schema of a tool that takes raw text."""


def request_path(model: ModelSettings, *, stream: bool) -> str:
    """Where requests go."""
    name = quote(model.name.removeprefix(_PREFIX), safe="")
    return f"{MODELS_PATH}/{name}:" + ("streamGenerateContent?alt=sse" if stream else "generateContent")


def read_models(body: bytes) -> list[str]:
    """The names in the list of models; raises ValueError if there is none."""
    match wire.decode_tolerant(body):
        case {"models": [*items]}:
            names = [item.get("name") for item in items if isinstance(item, dict)]
            return [name.removeprefix(_PREFIX) for name in names if isinstance(name, str)]
    raise ValueError("no list of models")


def write_request(conversation: Conversation, model: ModelSettings, *, stream: bool) -> bytes:  # noqa: ARG001  the path says both
    """The JSON body that asks the model of the upstream for the next reply."""
    raw = conversation.raw if conversation.protocol == "gemini" else {}
    if raw and not conversation.messages:  # nobody here could read it
        return wire.encode_request(raw)
    if not conversation.messages:
        raise RequestError("A request without messages cannot be written for Gemini.", param="messages")
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
    """Where tokens are counted."""
    return f"{MODELS_PATH}/{quote(model.name.removeprefix(_PREFIX), safe='')}:countTokens"


def write_count_request(conversation: Conversation, model: ModelSettings) -> bytes:
    """The JSON body that asks how many tokens the conversation has."""
    name = _PREFIX + model.name.removeprefix(_PREFIX)
    asked = wire.decode(write_request(conversation, model, stream=False))
    return wire.encode_request({"generateContentRequest": {**asked, "model": name}})


def read_count_reply(body: bytes) -> int | None:
    """The number of tokens; None if the upstream did not tell it."""
    return wire.count_in(body, "totalTokens")


def _turns(messages: Sequence[Message], model: ModelSettings, *, same: bool) -> tuple[Json, list[dict[str, Json]]]:
    """The value of `systemInstruction`, and the turns. What nobody changed is as it came, if that was in this protocol
    (`same`)."""
    leading = next((i for i, message in enumerate(messages) if message.role != "system"), len(messages))
    system: Json = None
    if leading == 1 and same and messages[0].raw:
        system = messages[0].raw[0]["systemInstruction"]
    elif leading:
        system = {"parts": [part for message in messages[:leading] for part in _parts(message.content)]}
    names = {call.id: call.name for message in messages for call in message.calls}
    unsigned = _UNSIGNED if _SIGNING.match(model.name) else None
    contents: list[dict[str, Json]] = []
    own = False  # the last turn is as it came
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
    return None, [{"role": "user", "parts": asked}]  # it demands that somebody asks


def _config(conversation: Conversation, raw: Mapping[str, Json]) -> dict[str, Json]:
    options, schema = conversation.options, _schema(conversation)
    given = camel(raw.get("generationConfig") or {})
    given.pop("stopSequences", None)
    formatted = options.output is not None or schema is not None
    if given and (conversation.forcing is not None or not formatted):
        given = {key: value for key, value in given.items() if key not in _FORMAT}
    fields: dict[str, Json] = {
        "maxOutputTokens": options.max_tokens,
        "temperature": options.temperature,
        "topP": options.top_p,
        "topK": options.top_k,
        "seed": options.seed,
        "presencePenalty": options.presence_penalty,
        "frequencyPenalty": options.frequency_penalty,
        "stopSequences": list(options.stop[:_STOPS]) or None,
        "candidateCount": options.n if options.n > 1 else None,
    }
    if _FORMAT.isdisjoint(given):
        fields["responseMimeType"] = "application/json" if formatted else None
        fields["responseJsonSchema"] = schema
    if not raw:
        fields["thinkingConfig"] = _thinking(options)
    return {**given, **{key: value for key, value in fields.items() if value is not None}}


def _schema(conversation: Conversation) -> Json:
    """JSON Schema of the whole reply; None if there is none."""
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
    """The tools, and which of them may be called. A free choice among some is made by leaving the others out."""
    declared: list[Json] = []
    for tool in tools:
        if choice.names and tool.name not in choice.names:
            continue
        declaration: dict[str, Json] = {"name": tool.name, "description": tool.description}
        parameters = _CUSTOM if tool.custom else tool.parameters
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
    """The parts of one message; `names` tells what the calls of the conversation were called.

    `unsigned` is the signature of a first call that came without one.
    """
    for result in message.results:
        yield from _result(result, result.name or names.get(result.id, result.id))
    yield from _parts(message.content)
    for number, call in enumerate(message.calls):
        signature = call.signature or (None if number else unsigned)
        signed = {} if signature is None else {"thoughtSignature": signature}
        yield {"functionCall": {"id": call.id, "name": call.name, "args": _arguments(call)}, **signed}


def _result(result: ToolResult, name: str) -> Iterator[dict[str, Json]]:
    """A result is text under a key that says whether it is an error; what is no text follows as parts."""
    text = "\n".join(part.text for part in result.content if isinstance(part, TextPart))
    response = {"error" if result.error else "output": text}
    yield {"functionResponse": {"id": result.id, "name": name, "response": response}}
    yield from _parts([part for part in result.content if isinstance(part, MediaPart)])


def _parts(parts: Sequence[Part]) -> Iterator[dict[str, Json]]:
    for part in parts:
        match part:
            case TextPart(text=""):
                pass  # refused
            case TextPart():
                yield {"text": part.text}
            case MediaPart() if part.data and part.type:
                yield {"inlineData": {"mimeType": part.type, "data": part.data}}
            case MediaPart() if part.url:
                file = {"mimeType": part.type, "fileUri": part.url}
                yield {"fileData": {key: value for key, value in file.items() if value}}
            case MediaPart():
                yield {"text": f"[{part.kind}]"}


def _arguments(call: ToolCall) -> Mapping[str, Json]:
    """The call's arguments as an object, whatever stands in the history; raw text gets a field."""
    if call.custom:
        return {"input": call.arguments}
    try:
        value = wire.decode_tolerant(call.arguments.encode("utf-8", "replace")) if call.arguments.strip() else {}
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"arguments": call.arguments}
