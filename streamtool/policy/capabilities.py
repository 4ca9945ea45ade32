"""Recognition of upstreams' errors that decline tools, token usage, or a method of forcing a call.

An error message that matches none of these patterns proves nothing: it may be about any part of the request.
"""

import re
from collections.abc import Mapping
from typing import Final, Literal

from streamtool.core.conversation import ForcingMethod

_SAYS: Final = re.compile(
    r"does(?: not|n't) support (?:tools|tool[ -]us|tool[ -]call|function[ -]call)"  # Ollama, and others
    r"|tools param(?:eter)? requires --jinja"  # llama.cpp
    r"|requires? --enable-auto-tool-choice"  # vLLM
    r"|--tool-call-parser"  # vLLM, SGLang
    r"|no endpoints found that support (?:the )?(?:provided )?['\"`]?tool"  # OpenRouter
    r"|(?:tools?|functions?|tool[ -]use|tool[ -]calling|function[ -]calling) (?:is|are) not supported"
    r"|not support(?:ed)? (?:with|for) (?:this|the) model.{0,40}\btools?\b"
    r"|unknown (?:field|parameter|argument)[: ]+['\"`]?tools?\b"
    r"|unrecognized request argument[^:]*: ['\"`]?tools?\b",
    re.IGNORECASE,
)


def denies_tools(message: str) -> bool:
    """Return whether an upstream's error message declines tools."""
    return _SAYS.search(message[:4000]) is not None


def proves_tools_denied(message: str, request: str) -> bool:
    """Return whether an error that declines tools is about the model itself. If the request contains similar words, the
    error may merely be quoting the request, and proves nothing.
    """
    return denies_tools(message) and _SAYS.search(request) is None


_USAGE: Final = re.compile(r"stream_options|include_usage", re.IGNORECASE)


def denies_usage(status: int, message: str) -> bool:
    """Return whether an upstream's error is about the field that requests token usage."""
    return status in _REFUSALS and _USAGE.search(message[:4000]) is not None


RefusedPart = Literal["method", "constraint", "unclear"]
"""The part of a forced call that an upstream declines: `method`; `constraint`, if the error is about the contents of
this schema or grammar; or `unclear`, if the error does not give a reason.
"""

_PREFILL: Final = re.compile(
    r"prefill|continue_final_message|add_generation_prompt|final (?:assistant )?(?:message|content)"
    r"|last message|end with a user|assistant messages? at the end|must alternate",
    re.IGNORECASE,
)
_RESPONSE_FORMAT: Final = r"response[_ ]?(?:format|mime_?type|json_?schema|schema)"
_FIELDS: Final[Mapping[ForcingMethod, str]] = {
    "schema": rf"{_RESPONSE_FORMAT}|output_(?:config|format)|json_schema|structured[_ ]outputs?|[\"'`]format\b",
    "guided": r"structured[_ ]outputs?|guided_\w+|guided decoding",
    "structural_tag": rf"{_RESPONSE_FORMAT}|structural[_ ]?tags?|structured[_ ]outputs?",
    "grammar": r"grammar(?:_lazy|_triggers)?s?|gbnf|preserved_tokens",
}
"""For each method, a pattern for the fields that errors about the method name."""
_DENIED: Final = (
    r"(?:unknown|unrecognized|unexpected|unsupported|extra) "
    r"(?:\w+ ){{0,2}}?(?:field|key|param|argument|name|property|properties|input)\w*\b.{{0,80}}?(?:{0})"
    r"|(?:not support|n't support|unsupported|not allow|not implement)\w*.{{0,40}}?(?:{0})"
    r"|(?:{0}).{{0,60}}?(?:(?:not|n't) (?:be )?(?:support|permit|allow|available|implement|recogni|enabled|known)"
    r"|unsupported|unavailable|unknown|unrecognized|unexpected|extra (?:inputs|fields))"
    r"|response_format\W{{1,8}}type\b.{{0,60}}(?:input should be|must be one of)"
)
_METHODS: Final = {
    method: re.compile(_DENIED.format(fields), re.IGNORECASE | re.DOTALL) for method, fields in _FIELDS.items()
}
_CONSTRAINT: Final = re.compile(
    r"\b(?:prefixItems|uniqueItems|additional(?:Properties|Items)|unevaluated\w+|pattern(?:s|Properties)?|propertyNames"
    r"|(?:min|max)(?:Items|Length|Properties|Contains)|exclusive(?:Min|Max)imum|multipleOf|anyOf|oneOf|allOf"
    r"|dependent\w+)\b|\$(?:ref|defs)\b"
    r"|propert(?:y|ies) ['\"`]|unimplemented|in context=|keyword|recursi"
    r"|not supported by (?:xgrammar|llguidance|guidance|outlines)"
    r"|invalid (?:json )?schema|schema (?:contains|is too|is invalid|is not valid|error)"
    r"|(?:invalid|malformed).{0,40}specification|(?:grammar|schema) (?:error|is too|compil)"
    r"|(?:pars|compil|convert|transform|initiali[sz])\w* .{0,40}(?:grammar|schema|structural|sampler)",
    re.IGNORECASE,
)
"""Matches words in errors about the contents of a constraint, regardless of the field that the error names."""
_REFUSALS: Final = frozenset((400, 404, 415, 422, 500, 501))
"""Statuses for requests that cannot be served unchanged. Some servers respond to a grammar with 500."""


def refused_part(method: ForcingMethod, status: int, message: str) -> RefusedPart | None:
    """Return the part of a forced call that an upstream's error declines, or None if the error is about something
    else.
    """
    if status not in _REFUSALS:
        return None
    said = message[:4000]
    if method != "prefill" and _CONSTRAINT.search(said):
        return "constraint"
    if says_refused(method, said):
        return "method"
    return "unclear" if status != 404 else None  # a 404, most likely about an unknown model or path


def says_refused(method: ForcingMethod, text: str) -> bool:
    """Return whether the text reports that a method is unsupported. If the request does the same, an error proves
    nothing, because it may be quoting the request.
    """
    return (_PREFILL if method == "prefill" else _METHODS[method]).search(text) is not None
