"""The servers that run models: how each is recognized without generating anything, and the consequences for requests.

The rows are data. A server is recognized by the members of its answers to a few GET requests (`QUESTIONS`), all sent at
the same time. The first row that matches wins: servers that imitate the API of another server precede that server.
Hosted APIs are recognized by the host of their URL and are asked nothing.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

from attrs import field, frozen

from streamtool.core.json_value import Json
from streamtool.protocols.table import ForcingSetting

Answers = Mapping[str, Json]
"""Path → the decoded answer. Paths without an answer in JSON are missing."""

MODELS: Final = "/v1/models"


@frozen
class Sign:
    """A member of an answer that identifies a server. `*` in the member's path stands for each item of a list."""

    path: str
    member: str
    value: str = ""
    """A regular expression that the member must match completely; "" accepts any value."""
    keys: tuple[str, ...] = ()
    """The names of all members of the member, in alphabetical order; () accepts any."""


@frozen
class WindowSource:
    """The member of an answer that contains the number of tokens in the context window."""

    path: str
    member: str
    named_by: str = ""
    """For a member of a list's items: the member of the same item that names the model; "" if all models share the
    window.
    """


@frozen
class Counter:
    """The request that counts the tokens in a text. The answer contains the number, or a list of tokens."""

    path: str
    member: str
    """The member of the request that contains the text."""


@frozen
class Engine:
    """One kind of server."""

    name: str
    signs: tuple[Sign, ...] = ()
    """All of them must be present; () for a hosted API."""
    hosts: tuple[str, ...] = ()
    """The hosts of a hosted API."""
    version: tuple[str, str] = ("", "")
    """The path and the member of the version; "" if the server does not report it."""
    protocol: str = "chat"
    """The protocol to speak."""
    windows: tuple[WindowSource, ...] = ()
    """Where the context window is read; the first source that contains it wins."""
    grows: bool = False
    """Whether the window is chosen by each request, up to the maximum of the model."""
    counter: Counter | None = None
    forcing: ForcingSetting = "auto"
    """How to force a demanded call if the setting is `auto`; `auto` is the method of the protocol."""
    forcing_over: Mapping[str, ForcingSetting] = field(factory=dict)
    """Protocol → the method over this protocol, where it differs from `forcing`."""
    constrains_free: bool = True
    """Whether this method is also used if the tool choice is free and the method leaves text unconstrained."""
    prefill: Literal["continued", "ignored", "rejected"] = "ignored"
    """How the server treats an assistant message at the end of the prompt."""
    grammars: bool = False
    """Whether a request may contain a GBNF grammar."""
    single_tokens: bool = False
    """Whether each delta contains one token, unless the server guesses several tokens ahead."""
    special_tokens: Mapping[str, Json] = field(factory=dict)
    """Fields of a request that keep the special tokens in the text of its reply; empty if the server has none."""
    truncates: bool = False
    """Whether the server may cut a prompt that does not fit, without an error."""
    uncached: str = ""
    """A regular expression for the versions whose count of prompt tokens leaves out cached ones."""
    fix: str = "start the model's server with a larger context window"
    """The remedy for prompts that do not fit."""


_KEEP_SPECIAL_TOKENS: Final[Mapping[str, Json]] = {"skip_special_tokens": False}

ENGINES: Final = (
    # Its list of models names the settings of each model (`server/model_list.py`). It imitates Ollama.
    Engine(
        "streamtool",
        signs=(Sign(MODELS, "data.*.streamtool.mode"),),
        windows=(WindowSource(MODELS, "data.*.context_length", "id"),),
    ),
    # koboldcpp.py: `{"result":"KoboldCpp","version":…}`, `{"value": maxctx}`, `/api/extra/tokencount`. It imitates
    # Ollama's `/api/tags` and llama.cpp's `/props`. A prompt that is too long loses its beginning.
    Engine(
        "KoboldCpp",
        signs=(Sign("/api/extra/version", "result", "KoboldCpp"),),
        version=("/api/extra/version", "version"),
        windows=(WindowSource("/api/extra/true_max_context_length", "value"),),
        counter=Counter("/api/extra/tokencount", "prompt"),
        prefill="continued",
        truncates=True,
        fix="start KoboldCpp with a larger --contextsize",
    ),
    # localai.io/features/api-discovery: readable without a key; `/version` needs one, and looks like vLLM's.
    Engine(
        "LocalAI",
        signs=(
            Sign("/.well-known/localai.json", "version"),
            Sign("/.well-known/localai.json", "endpoints.chat_completions"),
        ),
        version=("/.well-known/localai.json", "version"),
        fix="set a larger context_size in the file of the model",
    ),
    # lmstudio.ai/docs/developer/rest/endpoints: `state`, `max_context_length`, and `loaded_context_length` of loaded
    # models. A model that is not loaded yet gets the window that its user has chosen, which is not reported.
    Engine(
        "LM Studio",
        signs=(Sign("/api/v0/models", "data.*.state"), Sign("/api/v0/models", "data.*.max_context_length")),
        windows=(WindowSource("/api/v0/models", "data.*.loaded_context_length", "id"),),
        truncates=True,  # lmstudio-ai/lmstudio-bug-tracker#1806
        fix="load the model with a larger context length",
    ),
    # sglang/srt/entrypoints/http_server.py: `owned_by: "sglang"`, `max_model_len`; it imitates Ollama's paths.
    # sglang/srt/entrypoints/openai/protocol.py: `continue_final_message`, `skip_special_tokens`; the token that ends
    # the reply is left out in any case (`no_stop_trim`).
    Engine(
        "SGLang",
        signs=(Sign(MODELS, "data.*.owned_by", "sglang"),),
        version=("/get_server_info", "version"),
        windows=(WindowSource(MODELS, "data.*.max_model_len", "id"),),
        counter=Counter("/tokenize", "prompt"),
        prefill="continued",
        special_tokens=_KEEP_SPECIAL_TOKENS,
        fix="start SGLang with a larger --context-length",
    ),
    # docs/openapi.json of text-generation-inference: `Info`.
    Engine(
        "TGI",
        signs=(Sign("/info", "model_id"), Sign("/info", "max_total_tokens")),
        version=("/info", "version"),
        windows=(WindowSource("/info", "max_total_tokens"),),
        counter=Counter("/tokenize", "inputs"),
        fix="start TGI with a larger --max-total-tokens",
    ),
    # tools/server/README.md of llama.cpp; docs/engines.md shows what its server does with each method. `n_ctx` is the
    # window of one slot. Only completions apply a grammar after a trigger, so that it can be used if the tool choice
    # is free. While the model writes text, that costs no measurable time (benchmarks/constraint.py: 0.99 times as many
    # tokens per second with Gemma 3 270M, 1.02 with SmolLM2-135M).
    Engine(
        "llama.cpp",
        signs=(Sign("/props", "default_generation_settings"),),
        version=("/props", "build_info"),
        windows=(WindowSource("/props", "default_generation_settings.n_ctx"),),
        counter=Counter("/tokenize", "content"),
        forcing_over={"completions": "grammar"},
        prefill="continued",
        grammars=True,
        single_tokens=True,
        fix="start llama.cpp with a larger --ctx-size",
    ),
    # vllm/entrypoints/openai: `owned_by: "vllm"`, `max_model_len`, `/version`, `/tokenize`, `skip_special_tokens`. Its
    # own tool parsers set that field, too; the token that ends the reply is left out in any case (`detokenizer.py`).
    Engine(
        "vLLM",
        signs=(Sign(MODELS, "data.*.owned_by", "vllm"),),
        version=("/version", "version"),
        windows=(WindowSource(MODELS, "data.*.max_model_len", "id"),),
        counter=Counter("/tokenize", "prompt"),
        prefill="continued",
        single_tokens=True,
        special_tokens=_KEEP_SPECIAL_TOKENS,
        fix="start vLLM with a larger --max-model-len",
    ),
    # docs/api.md and docs/context-length.mdx of Ollama: `context_length` of loaded models, the window depends on the
    # graphics memory. `/v1` ignores `num_ctx`. A prompt that does not fit is cut without an error (ollama/ollama#4967,
    # #17889). Version 0.30 leaves cached tokens out of `prompt_eval_count` (#16414), and so does 0.1 (#3427).
    # Open WebUI has `/api/version`, too, but no `/api/tags`.
    Engine(
        "Ollama",
        signs=(Sign("/api/version", "version"), Sign("/api/tags", "models")),
        version=("/api/version", "version"),
        protocol="ollama",
        windows=(WindowSource("/api/ps", "models.*.context_length", "name"),),
        grows=True,
        prefill="continued",
        single_tokens=True,
        truncates=True,
        uncached=r"0\.(1|30)\..*",
        fix='set context, which Ollama gets as num_ctx if protocol is "ollama"',
    ),
    # llama_cpp/server/app.py and types.py: `response_format` is text or `json_object`; other values are answered with
    # 500. A grammar is applied to the whole vocabulary for each token, which costs a quarter of the speed with
    # SmolLM2-135M, so it is not used if the choice is free. An assistant message at the end is a finished one.
    Engine(
        "llama-cpp-python",
        signs=(Sign("/openapi.json", "info.title", r".*llama\.cpp Python API"),),
        version=("/openapi.json", "info.version"),
        counter=Counter("/extras/tokenize/count", "input"),
        forcing="grammar",
        constrains_free=False,
        fix="start llama-cpp-python with a larger --n_ctx",
    ),
    # transformers/cli/serving/server.py: only this server has `/load_model`. It ignores `response_format` over `chat`,
    # rejects the other fields that constrain a reply, and computes an assistant message at the end as a finished one.
    Engine(
        "transformers serve",
        signs=(Sign("/openapi.json", "paths./load_model"),),
        forcing="prompt",
        forcing_over={"completions": "prefill"},
    ),
    # mlx_lm/SERVER.md: no field that constrains a reply; `id` and `created` are the only members of a model, except
    # for `object`. The limit on a reply is 512 tokens unless the request contains one.
    Engine(
        "mlx-lm",
        signs=(Sign("/health", "status", "ok"), Sign(MODELS, "data.*", keys=("created", "id", "object"))),
        forcing="prompt",
        forcing_over={"completions": "prefill"},
        truncates=True,
        fix="start mlx-lm with a larger --max-prompt-tokens",
    ),
    Engine("OpenAI", hosts=("api.openai.com",)),
    Engine("Anthropic", hosts=("api.anthropic.com",), protocol="messages", prefill="rejected"),
    Engine("Gemini", hosts=("generativelanguage.googleapis.com",), protocol="gemini"),
    Engine("OpenRouter", hosts=("openrouter.ai",)),
    Engine("Groq", hosts=("api.groq.com",)),
    Engine("Mistral", hosts=("api.mistral.ai",)),
    Engine("DeepSeek", hosts=("api.deepseek.com",)),
    Engine("Together", hosts=("api.together.xyz", "api.together.ai")),
    Engine("Fireworks", hosts=("api.fireworks.ai",)),
    Engine("xAI", hosts=("api.x.ai",)),
)
"""All rows, in order of precedence."""

HOSTED: Final[Mapping[str, Engine]] = {host: row for row in ENGINES for host in row.hosts}
"""Host → the hosted API."""

QUESTIONS: Final = tuple(
    dict.fromkeys(
        path
        for row in ENGINES
        for path in (
            *(sign.path for sign in row.signs),
            *(source.path for source in row.windows),
            *((row.version[0],) if row.version[0] else ()),
        )
    )
)
"""The paths of all questions."""


@frozen(eq=False)
class FoundEngine:
    """A recognized server."""

    engine: Engine
    version: str = ""
    windows: Mapping[str, int] = field(factory=dict)
    """Model → its context window in tokens; the key "" stands for all models."""
    where: str = ""
    """The path of the answer that contained the windows."""
    maximums: dict[str, int] = field(factory=dict)
    """Model → the largest window that a request may choose."""
    chosen: dict[str, int] = field(factory=dict)
    """Model → the window that the last request chose. A smaller one would make the server load the model again."""

    def window(self, model: str) -> int | None:
        """Return the context window of a model, or None if it is unknown."""
        return _of_model(self.maximums if self.engine.grows else self.windows, model)

    def window_for(self, model: str, tokens: int) -> int | None:
        """Return the window to ask for if a prompt and its reply need this many tokens, or None for the server's
        default. It never shrinks.
        """
        chosen = self.chosen.get(model, 0)
        if tokens <= _SMALLEST_WINDOW and not chosen:
            return None
        wanted = max(chosen, _of_model(self.windows, model) or 0, _LEAST_WINDOW, 1 << (tokens - 1).bit_length())
        made = self.chosen[model] = min(wanted, _of_model(self.maximums, model) or wanted)
        return made

    @property
    def title(self) -> str:
        """The name and the version."""
        return f"{self.engine.name} {self.version}".strip()

    def shown_window(self, model: str) -> str:
        """Return the window of a model, or of the only one that is known, in words."""
        window = self.window(model)
        known = set((self.maximums if self.engine.grows else self.windows).values())
        if window is None and len(known) == 1:
            (window,) = known
        if self.engine.grows:
            return "num_ctx as needed" + (f", up to {window}" if window else "")
        return f"window {window} ({self.where})" if window else "window unknown"


_SMALLEST_WINDOW: Final = 2048
"""The smallest default of Ollama, in tokens: a prompt that fits needs no other window."""
_LEAST_WINDOW: Final = 4096


def recognize(answers: Answers) -> FoundEngine | None:
    """Return the server that gave these answers, or None if it is not known."""
    for row in ENGINES:
        if row.signs and all(_shows(answers, sign) for sign in row.signs):
            version = next((found for found in members(answers.get(row.version[0]), row.version[1])), "")
            where, windows = _windows(answers, row.windows)
            return FoundEngine(row, version[:64] if isinstance(version, str) else "", windows, where)
    return None


def members(value: Json, path: str) -> Iterator[Json]:
    """Yield the members of a JSON value at this path: names separated by dots, and `*` for each item of a list."""
    first, _, rest = path.partition(".")
    items: Sequence[Json] = ()
    if first == "*" and isinstance(value, list):
        items = value
    elif isinstance(value, dict) and first in value:
        items = (value[first],)
    for item in items:
        if rest:
            yield from members(item, rest)
        else:
            yield item


def read_count(answer: Json) -> int | None:
    """Return the number of tokens in the answer to a `Counter`, or None if it contains none."""
    match answer:
        case {"count": int(number)} | {"value": int(number)}:
            return number
        case {"tokens": [*tokens]} | [*tokens]:
            return len(tokens)
    return None


def is_window(value: Json) -> bool:
    """Return whether a value is a plausible number of tokens."""
    return isinstance(value, int) and not isinstance(value, bool) and 256 <= value < 2**31


def _shows(answers: Answers, sign: Sign) -> bool:
    return any(
        (not sign.value or (isinstance(found, str) and re.fullmatch(sign.value, found) is not None))
        and (not sign.keys or (isinstance(found, dict) and tuple(sorted(found)) == sign.keys))
        for found in members(answers.get(sign.path), sign.member)
        if found is not None
    )


def _windows(answers: Answers, sources: Sequence[WindowSource]) -> tuple[str, dict[str, int]]:
    """Return the path of the first source that contains windows, and these windows by model."""
    for source in sources:
        answer = answers.get(source.path)
        listed, between, member = source.member.rpartition(".*.")
        items = members(answer, f"{listed}.*") if between else (answer,)
        found = {
            name: value
            for item in items
            if isinstance(item, dict) and isinstance(name := item.get(source.named_by, ""), str)
            for value in members(item, member)
            if is_window(value)
        }
        if found:
            return source.path, found
    return "", {}


def _of_model(windows: Mapping[str, int], model: str) -> int | None:
    """Return the window of a model, which a server may list with the tag `latest`."""
    return windows.get(model) or windows.get(f"{model}:latest") or windows.get("")
