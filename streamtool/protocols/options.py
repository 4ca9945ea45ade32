"""Table of options: the location of each reply option in the request bodies of each protocol.

Readers and writers of requests, telemetry, the list of dropped fields and `tools/protocols_page.py` all use this table.
To add a sampling option, add one row. `tests/protocols/test_option_table.py` reports each protocol that a row omits,
sends every option from every client protocol to every upstream protocol, and compares the field names with the types in
the official SDKs.

The table is data; it imports no protocol package. `reading` and `writing` compile it once for each protocol.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, Final

from attrs import frozen

from streamtool.core.conversation import Options
from streamtool.core.json_value import Json

Path = tuple[str, ...]

CONTAINERS: Final[Mapping[str, str]] = {"ollama": "options", "gemini": "generationConfig"}
"""Body field that contains the options, for protocols that have such a field."""


class OptionKind(Enum):
    """Type of an option's value in the body."""

    NUMBER = "a number"
    WHOLE = "a whole number"
    TEXT = "a string"
    TEXTS = "a string or a list of strings"
    OWN = "a structure"
    """Structure that each protocol reads and writes with its own code; the row exists only for the other users of the
    table.
    """


class Absent(Enum):
    """Treatment of an option that a protocol cannot express."""

    UNSUPPORTED = "unsupported"
    """The option is dropped, and a note is logged."""
    REJECTED = "rejected"
    """The writer rejects a request that contains the option."""


UNSUPPORTED: Final = Absent.UNSUPPORTED
REJECTED: Final = Absent.REJECTED

Converter = Callable[[Json], Json]
"""Function that converts a value other than None. It returns None if the value is equivalent to an absent option."""


Condition = Callable[[Options], bool]


# --- converters -------------------------------------------------------------------------------------------------------


def above_zero(value: float) -> float | None:
    """Return the number, or None if it is 0 or less: Ollama's -1 and -2 mean "no limit"."""
    return value if value > 0 else None


def not_zero(value: float) -> float | None:
    """Return the number, or None if it is 0."""
    return value or None


def above_one(value: int) -> int | None:
    """Return the count, or None for 1, which is the default in every protocol."""
    return value if value > 1 else None


def truncated(value: float) -> float:
    """Return the number without its fractional part, because Gemini declares `topK`, an integer, as a float."""
    return int(value) if math.isfinite(value) else value


def cut_to_unit(value: float) -> float:
    """Return the value, clamped to the range from 0 to 1."""
    return min(max(value, 0), 1)


def listed(value: tuple[str, ...]) -> list[str] | None:
    """Return the strings as a list, or None if the list is empty."""
    return list(value) or None


def not_blank(value: tuple[str, ...]) -> list[str] | None:
    """Return the strings that are not blank, or None if all are blank. The Messages API rejects blank strings."""
    return [text for text in value if text.strip()] or None


def first_five(value: tuple[str, ...]) -> list[str] | None:
    """Return the first five strings, because Gemini accepts no more than five. The exchange itself applies all of the
    strings.
    """
    return list(value[:5]) or None


def no_temperature(options: Options) -> bool:
    """Return whether the request has no temperature. Newer Anthropic models accept a temperature or `top_p`, but not
    both.
    """
    return "temperature" not in options.sampling


def no_schemaless_output(options: Options) -> bool:
    """Return whether the output is unrestricted or has a schema. This is false for JSON output without a schema."""
    return options.output is None or options.output.foreign or options.output.schema is not None


# --- rows -------------------------------------------------------------------------------------------------------------


@frozen
class Spelling:
    """Location of an option in a protocol's body, and the conversion of its value."""

    path: Path
    """Keys that lead to the value, from the outermost to the innermost."""
    also: tuple[Path, ...] = ()
    """Paths to read from, in order, if `path` leads to no value."""
    extension: bool = False
    """Whether the field is unknown to the origin and supported only by engines such as vLLM, SGLang and llama.cpp."""
    read: Converter | None = None
    write: Converter | None = None
    """Converter to use instead of the option's own."""
    fallback: int | None = None
    """Value to write if the client sent no value."""
    fits: Condition | None = None
    """Condition for writing the option; None means always."""
    note: str = ""
    """Limitations of the option in this protocol, for the docs."""


OptionPlace = Spelling | Absent


@frozen
class Sides:
    """Locations of an option in a protocol in which client requests and upstream requests differ."""

    client: OptionPlace
    upstream: OptionPlace


@frozen
class Option:
    """One option of a reply."""

    name: str
    """Name of the field in `conversation.Options`, or of the key in its `sampling`."""
    kind: OptionKind
    spelled: Mapping[str, OptionPlace | Sides]
    """Location of the option in each protocol. A missing protocol counts as unsupported, and a test reports the
    omission.
    """
    span: str | None = None
    """Attribute of OpenTelemetry spans; None if spans do not include the option."""
    sampling: bool = False
    """Whether the value is in `Options.sampling`."""
    least: int = 0
    """Lowest valid value of a whole number."""
    most: int | None = None
    write: Converter | None = None
    applied: bool = False
    """Whether the exchange itself applies the option, so that nothing is lost if the upstream does not support it."""
    prompted: bool = False
    """Whether the prompt asks for the option in requests whose tools are moved into the prompt."""
    note: str = ""
    """Effect of the option, for the docs."""

    def client(self, protocol: str) -> OptionPlace:
        """Return the option's location in client requests."""
        found = self.spelled.get(protocol, UNSUPPORTED)
        return found.client if isinstance(found, Sides) else found

    def upstream(self, protocol: str) -> OptionPlace:
        """Return the option's location in upstream requests."""
        found = self.spelled.get(protocol, UNSUPPORTED)
        return found.upstream if isinstance(found, Sides) else found


def at(*path: str, **rest: Any) -> Spelling:
    """Return the spelling with this path."""
    return Spelling(path, **rest)


def engines_read(*path: str) -> Sides:
    """Return the locations of an extension that is read from client requests but not written to upstream requests.

    Some servers reject unknown fields (OpenAI with 400, `transformers serve` with 422).
    """
    return Sides(Spelling(path, extension=True), UNSUPPORTED)


OPTIONS: Final = (
    Option(
        "n",
        OptionKind.WHOLE,
        {
            "chat": at("n"),
            "messages": REJECTED,
            "responses": REJECTED,
            "ollama": REJECTED,
            "gemini": at("generationConfig", "candidateCount", read=above_zero),
            "completions": at("n"),
        },
        span="gen_ai.request.choice.count",
        least=1,
        most=128,
        write=above_one,
    ),
    Option(
        "stop",
        OptionKind.TEXTS,
        {
            "chat": at("stop"),
            "messages": at("stop_sequences", write=not_blank),
            "responses": UNSUPPORTED,
            "ollama": at("options", "stop"),
            "gemini": at("generationConfig", "stopSequences", write=first_five),
            "completions": at("stop"),
        },
        write=listed,
        applied=True,
        note="ends the visible text",
    ),
    Option(
        "max_tokens",
        OptionKind.WHOLE,
        {
            "chat": Sides(at("max_completion_tokens", also=(("max_tokens",),)), at("max_tokens")),
            "messages": at("max_tokens", write=not_zero, fallback=8192, note="8192 by default"),
            "responses": at("max_output_tokens"),
            "ollama": at("options", "num_predict", read=above_zero),
            "gemini": at("generationConfig", "maxOutputTokens"),
            "completions": at("max_tokens", fallback=4096, note="4096 by default"),
        },
        span="gen_ai.request.max_tokens",
    ),
    Option(
        "temperature",
        OptionKind.NUMBER,
        {
            "chat": at("temperature"),
            "messages": at("temperature", write=cut_to_unit, note="clamped to 0 … 1"),
            "responses": at("temperature"),
            "ollama": at("options", "temperature"),
            "gemini": at("generationConfig", "temperature"),
            "completions": at("temperature"),
        },
        span="gen_ai.request.temperature",
        sampling=True,
    ),
    Option(
        "top_p",
        OptionKind.NUMBER,
        {
            "chat": at("top_p"),
            "messages": at("top_p", fits=no_temperature, note="only without temperature"),
            "responses": at("top_p"),
            "ollama": at("options", "top_p"),
            "gemini": at("generationConfig", "topP"),
            "completions": at("top_p"),
        },
        span="gen_ai.request.top_p",
        sampling=True,
    ),
    Option(
        "top_k",
        OptionKind.WHOLE,
        {
            "chat": engines_read("top_k"),
            "messages": at("top_k"),
            "responses": UNSUPPORTED,
            "ollama": at("options", "top_k"),
            "gemini": at("generationConfig", "topK", read=truncated),
            "completions": UNSUPPORTED,
        },
        span="gen_ai.request.top_k",
        sampling=True,
    ),
    Option(
        "min_p",
        OptionKind.NUMBER,
        {
            "chat": engines_read("min_p"),
            "messages": UNSUPPORTED,
            "responses": UNSUPPORTED,
            "ollama": at("options", "min_p", extension=True),
            "gemini": UNSUPPORTED,
            "completions": UNSUPPORTED,
        },
        span="streamtool.request.min_p",
        sampling=True,
    ),
    Option(
        "seed",
        OptionKind.WHOLE,
        {
            "chat": at("seed"),
            "messages": UNSUPPORTED,
            "responses": UNSUPPORTED,
            "ollama": at("options", "seed"),
            "gemini": at("generationConfig", "seed"),
            "completions": at("seed"),
        },
        span="gen_ai.request.seed",
        sampling=True,
        least=-(2**63),
    ),
    Option(
        "presence_penalty",
        OptionKind.NUMBER,
        {
            "chat": at("presence_penalty"),
            "messages": UNSUPPORTED,
            "responses": UNSUPPORTED,
            "ollama": at("options", "presence_penalty"),
            "gemini": at("generationConfig", "presencePenalty"),
            "completions": at("presence_penalty"),
        },
        span="gen_ai.request.presence_penalty",
        sampling=True,
    ),
    Option(
        "frequency_penalty",
        OptionKind.NUMBER,
        {
            "chat": at("frequency_penalty"),
            "messages": UNSUPPORTED,
            "responses": UNSUPPORTED,
            "ollama": at("options", "frequency_penalty"),
            "gemini": at("generationConfig", "frequencyPenalty"),
            "completions": at("frequency_penalty"),
        },
        span="gen_ai.request.frequency_penalty",
        sampling=True,
    ),
    Option(
        "repetition_penalty",
        OptionKind.NUMBER,
        {
            "chat": engines_read("repetition_penalty"),
            "messages": UNSUPPORTED,
            "responses": UNSUPPORTED,
            "ollama": at("options", "repeat_penalty"),
            "gemini": UNSUPPORTED,
            "completions": UNSUPPORTED,
        },
        span="streamtool.request.repetition_penalty",
        sampling=True,
    ),
    Option(
        "user",
        OptionKind.TEXT,
        {
            "chat": Sides(at("user", also=(("safety_identifier",),)), at("user")),
            "messages": at("metadata", "user_id"),
            "responses": Sides(at("user", also=(("safety_identifier",),)), at("user")),
            "ollama": UNSUPPORTED,
            "gemini": UNSUPPORTED,
            "completions": at("user"),
        },
    ),
    Option(
        "effort",
        OptionKind.OWN,
        {
            "chat": at("reasoning_effort"),
            "messages": Sides(at("output_config", "effort", also=(("thinking",),)), at("output_config", "effort")),
            "responses": at("reasoning", "effort"),
            "ollama": at("think", note="true or false; a level for gpt-oss"),
            "gemini": at("generationConfig", "thinkingConfig", note="as a token budget"),
            "completions": UNSUPPORTED,
        },
        note="reasoning effort",
    ),
    Option(
        "thinking",
        OptionKind.OWN,
        {
            "chat": Sides(at("chat_template_kwargs", extension=True), UNSUPPORTED),
            "messages": UNSUPPORTED,
            "responses": UNSUPPORTED,
            "ollama": Sides(at("think"), UNSUPPORTED),
            "gemini": Sides(at("generationConfig", "thinkingConfig"), UNSUPPORTED),
            "completions": UNSUPPORTED,
        },
        note="whether the prompt opens reasoning",
    ),
    Option(
        "output",
        OptionKind.OWN,
        {
            "chat": at("response_format"),
            "messages": Sides(
                at("output_config", "format", also=(("output_format",),)),
                at("output_config", "format", fits=no_schemaless_output, note="only with a schema"),
            ),
            "responses": at("text", "format"),
            "ollama": at("format"),
            "gemini": at("generationConfig", "responseMimeType"),
            "completions": UNSUPPORTED,
        },
        prompted=True,
        note="output format",
    ),
)
"""All options, in the order in which the docs list them."""

BY_NAME: Final[Mapping[str, Option]] = {option.name: option for option in OPTIONS}
SPANS: Final[Mapping[str, str]] = {option.name: option.span for option in OPTIONS if option.span is not None}
"""Attributes of OpenTelemetry spans, by option name."""


# --- compiled for a protocol ------------------------------------------------------------------------------------------


@frozen
class ReadRow:
    """Location to read an option from, relative to the fields that contain a protocol's options."""

    name: str
    kind: OptionKind
    sampling: bool
    parent: str
    """Field that contains the key; "" if the key is among the options themselves."""
    key: str
    least: int
    most: int | None
    convert: Converter | None


@frozen
class WriteRow:
    """Location to write an option to, relative to the fields that contain a protocol's options."""

    name: str
    sampling: bool
    parent: str
    key: str
    convert: Converter | None
    fallback: int | None
    fits: Condition | None


def reading(protocol: str) -> tuple[ReadRow, ...]:
    """Return the locations to read a client's options from. If there are several locations for an option, the first one
    that contains a value takes precedence.
    """
    rows: list[ReadRow] = []
    for option in OPTIONS:
        place = option.client(protocol)
        if option.kind is OptionKind.OWN or isinstance(place, Absent):
            continue
        for path in (place.path, *place.also):
            parent, key = _relative(protocol, path)
            rows.append(
                ReadRow(option.name, option.kind, option.sampling, parent, key, option.least, option.most, place.read)
            )
    return tuple(rows)


def writing(protocol: str) -> tuple[WriteRow, ...]:
    """Return the locations to write an upstream's options to."""
    rows: list[WriteRow] = []
    for option in OPTIONS:
        place = option.upstream(protocol)
        if option.kind is not OptionKind.OWN and isinstance(place, Spelling):
            parent, key = _relative(protocol, place.path)
            convert = place.write or option.write
            rows.append(WriteRow(option.name, option.sampling, parent, key, convert, place.fallback, place.fits))
    return tuple(rows)


def _relative(protocol: str, path: Path) -> tuple[str, str]:
    """Return the parent and the key of a path, relative to the fields that contain the protocol's options."""
    container = CONTAINERS.get(protocol)
    inner = path if container is None or path[0] != container else path[1:]
    if container is not None and inner == path:
        raise ValueError(f"{'.'.join(path)}: options of {protocol} are read from `{container}`")
    return (inner[0] if len(inner) > 1 else ""), inner[-1]


def client_paths(protocol: str) -> Iterator[tuple[Option, Path]]:
    """Yield each option with each path that clients of the protocol may use for it."""
    for option in OPTIONS:
        place = option.client(protocol)
        if isinstance(place, Spelling):
            for path in (place.path, *place.also):
                yield option, path
