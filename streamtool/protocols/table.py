"""Table of protocols: one row for each, with its paths and the features that its servers reliably support.

Every other list of protocols is derived from these rows. The rows are pure data: this module imports no other part of
the project, so the settings can import it. `registry` loads the code for a row.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, TypeVar

from attrs import frozen

ForcingSetting = Literal["auto", "prompt", "prefill", "schema", "guided", "structural_tag", "grammar"]
"""Forcing method; `auto` selects the method that all of the protocol's servers support."""


@frozen
class ProtocolRow:
    """Properties of one protocol, apart from its code."""

    name: str
    """Name of the protocol in the settings, and of its package."""
    aliases: tuple[str, ...] = ()
    """Other names that the settings accept: the vendor's, or the API's."""
    paths: tuple[str, ...] = ()
    """Paths served to clients, with `{model}` in place of any model name; () if clients cannot use this protocol."""
    addressed: bool = False
    """Whether the path carries information that the body lacks; the package's `at` returns the attributes that depend
    on the path.
    """
    model_in_path: bool = False
    """Whether the path names the model and selects streaming."""
    query_key: str = ""
    """Query parameter in which a client may send its key; "" if only a header may contain it."""
    list_paths: tuple[tuple[str, str], ...] = ()
    """Paths where clients list models, with their HTTP methods."""
    other_paths: tuple[tuple[str, str], ...] = ()
    """Paths that serve something other than a reply, each with the name of its purpose in the settings."""
    websocket: bool = False
    """Whether clients may also use the protocol over a websocket, at the same paths."""
    assumed_of_upstream: bool = True
    """Whether an unconfigured upstream is assumed to speak the client's protocol; if not, it is assumed to speak
    `chat`.
    """
    path_suffixes: tuple[str, ...] = ()
    """Suffixes that the protocol appends to an upstream's base URL."""
    hosts: tuple[str, ...] = ()
    """Hosts that speak only this protocol."""
    forcing: tuple[ForcingSetting, ...] = ("prompt",)
    """Supported forcing methods."""
    auto_forcing: Literal["prompt", "prefill", "schema"] = "prompt"
    """Forcing method of `auto`: one that most servers of the protocol support. The prompt demands the call in any case,
    so a server may ignore the method, and after a rejected request the prompt alone is used.
    """
    lazy_grammar: bool = False
    """Whether llama.cpp honors a grammar's triggers. In a chat request, it overwrites them with the template's own
    triggers.
    """
    native_tools: bool = True
    """Whether requests can contain tools."""
    prefill: bool = True
    """Whether a request can contain the beginning of the reply."""
    joins_neighbours: bool = False
    """Whether consecutive messages of the same role are merged."""
    signs_calls: bool = False
    """Whether calls may carry a signature that must be sent back."""
    provider: str | None = None
    """Provider name in OpenTelemetry's conventions; None if the provider name is the protocol's name."""


ROWS: Final = (
    ProtocolRow(
        "chat",
        aliases=("openai", "openai-chat", "chat-completions", "chat_completions"),
        paths=("/v1/chat/completions",),
        path_suffixes=("/chat/completions",),
        forcing=("prompt", "prefill", "schema", "guided", "structural_tag", "grammar"),
        auto_forcing="schema",  # SmolLM2 on llama.cpp calls in 189 of 189 cases (docs/results.md); without, in 3 of 16
        signs_calls=True,  # in Google's dialect only
        provider="openai",
    ),
    ProtocolRow(
        "messages",
        aliases=("anthropic", "claude"),
        paths=("/v1/messages",),
        other_paths=(("/v1/messages/count_tokens", "count_tokens"),),
        path_suffixes=("/messages",),
        hosts=("api.anthropic.com",),
        forcing=("prompt", "prefill", "schema"),
        joins_neighbours=True,
        provider="anthropic",
    ),
    ProtocolRow(
        "responses",
        aliases=("openai-responses", "openai_responses"),
        paths=("/v1/responses",),
        other_paths=(("/v1/responses/input_tokens", "input_tokens"), ("/v1/responses/compact", "compact")),
        websocket=True,
        assumed_of_upstream=False,
        path_suffixes=("/responses",),
        forcing=("prompt", "schema"),
        prefill=False,
        provider="openai",
    ),
    ProtocolRow(
        "ollama",
        paths=("/api/chat", "/api/generate"),
        addressed=True,
        list_paths=(("/api/tags", "GET"), ("/api/ps", "GET"), ("/api/version", "GET"), ("/api/show", "POST")),
        path_suffixes=("/api/chat", "/api/generate"),
        forcing=("prompt", "prefill", "schema"),
        auto_forcing="schema",
    ),
    ProtocolRow(
        "gemini",
        aliases=("google", "google-genai"),
        paths=tuple(
            f"{version}/models/{{model}}:{verb}"
            for version in ("/v1beta", "/v1")
            for verb in ("generateContent", "streamGenerateContent")
        ),
        addressed=True,
        model_in_path=True,
        query_key="key",
        list_paths=(("/v1beta/models", "GET"), ("/v1beta/models/{model}", "GET")),
        other_paths=tuple(
            (f"{version}/models/{{model}}:countTokens", "gemini_count_tokens") for version in ("/v1beta", "/v1")
        ),
        hosts=("generativelanguage.googleapis.com",),
        forcing=("prompt", "schema"),
        prefill=False,
        joins_neighbours=True,
        signs_calls=True,
        provider="gcp.gemini",
    ),
    ProtocolRow(
        "completions",
        path_suffixes=("/completions",),
        forcing=("prompt", "prefill", "schema", "guided", "structural_tag", "grammar"),
        auto_forcing="prefill",
        lazy_grammar=True,
        native_tools=False,
        provider="openai",
    ),
)


PROTOCOLS: Final[Mapping[str, ProtocolRow]] = MappingProxyType({row.name: row for row in ROWS})


PROTOCOL_ALIASES: Final[Mapping[str, str]] = MappingProxyType(
    {alias: row.name for row in ROWS for alias in row.aliases}
)
"""Other name → protocol."""


CLIENT_NAMES: Final = tuple(row.name for row in ROWS if row.paths)
"""Protocols that a client may speak."""


UPSTREAM_NAMES: Final = tuple(row.name for row in ROWS)
"""Protocols that an upstream may speak."""


WEBSOCKETS: Final = frozenset(row.name for row in ROWS if row.websocket)
"""Protocols that a client may use over a websocket."""


COMPACT: Final = "compact"
"""Name used in place of a protocol for requests that compact a conversation."""


OTHER_REQUESTS: Final[Mapping[str, str]] = MappingProxyType(
    {what: row.name for row in ROWS for _, what in row.other_paths}
)
"""Client protocol of each purpose other than a reply, by the purpose's name, which is used in place of a protocol."""


COUNTS: Final = frozenset(OTHER_REQUESTS) - {COMPACT}
"""Names used in place of a protocol for requests that count tokens."""


PATHS: Final[Mapping[str, str]] = MappingProxyType(
    {path: row.name for row in ROWS for path in row.paths}
    | {path: what for row in ROWS for path, what in row.other_paths}
)
"""Paths served here, each with its protocol or purpose."""


LISTS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {path: (row.name, method) for row in ROWS for path, method in row.list_paths}
)
"""Paths where clients list models, each with its protocol and HTTP method."""


VERSIONS: Final = ("/v1beta", "/v1")
"""Path prefixes that name a protocol's version."""


MODEL: Final = "{model}"
"""Placeholder for any model name in a path."""


T = TypeVar("T")


_UNSAFE_SEGMENTS: Final = frozenset(("", ".", ".."))
"""Segments that a model name in a path must not contain, because another server may resolve such a path to a different
path.
"""


_LONGEST: Final = 512
"""Maximum length of the beginning of a path that may precede a served path."""


def at_path(paths: Mapping[str, T], path: str) -> T | None:
    """Return the entry of `paths` that matches this path, or None if no entry matches. A key may contain `{model}`."""
    found = paths.get(path)
    if found is not None:
        return found
    return next((value for one, value in paths.items() if MODEL in one and matches_path(one, path)), None)


def without_version(path: str) -> str:
    """Return the path without the protocol's version prefix."""
    for version in VERSIONS:
        path = path.removeprefix(version)
    return path


def find_ending(paths: Mapping[str, T], path: str) -> str:
    """Return the longest proper ending of this path, from a slash on, that matches an entry of `paths`, or ""."""
    at = path.find("/", 1, _LONGEST)
    while at > 0:
        if at_path(paths, path[at:]) is not None:
            return path[at:]
        at = path.find("/", at + 1, _LONGEST)
    return ""


def matches_path(template: str, path: str) -> bool:
    """Return whether a path matches the template."""
    before, _, after = template.partition(MODEL)
    named = path.removeprefix(before).removesuffix(after)
    return f"{before}{named}{after}" == path and _UNSAFE_SEGMENTS.isdisjoint(named.split("/"))


def protocol_for_errors(paths: Mapping[str, str], path: str) -> str:
    """Return the client protocol whose error format applies at this path."""
    name = at_path(paths, path)
    if name is not None:
        return OTHER_REQUESTS.get(name, name)
    listed = at_path(LISTS, path)
    if listed is not None:
        return listed[0]
    first = path.split("/", 2)[1:2]
    return next((row.name for row in ROWS if row.paths and row.paths[0].split("/", 2)[1:2] == first), "chat")


def protocol_of_host(host: str | None) -> str:
    """Return the protocol to assume for an upstream if only its host is configured."""
    return next((row.name for row in ROWS if host in row.hosts), "chat")


def upstream_name(client: str, name: str | None) -> str:
    """Return the name of the protocol to speak to an upstream. If `name` is None, the result is the client's own
    protocol if the upstream may be assumed to speak it, and `chat` if not.
    """
    return name or (client if PROTOCOLS[client].assumed_of_upstream else "chat")
