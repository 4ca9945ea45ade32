"""Methods of forcing a call: by the prompt alone, or by the strongest method that the upstream supports.

A call is forced when the client's tool choice demands one. Two methods, structural tags and grammars, are used even if
the tool choice is free, since they leave text unconstrained and only make arguments follow their schema. No method
changes the tool prompt: each adds a field to the request, or the beginning of the reply. The prompt therefore remains a
prefix of the next one.
"""

from collections.abc import Sequence
from typing import Final, Literal

from streamtool.core.conversation import Conversation, Forcing, ForcingMethod, Tool
from streamtool.forcing.call_frames import frame
from streamtool.forcing.continuation import rest_grammar
from streamtool.forcing.gbnf import schema_grammar
from streamtool.forcing.grammar import call_grammar
from streamtool.forcing.schemas import call_schema, call_structural_tag
from streamtool.prompting.one_object import is_one_object
from streamtool.protocols.table import PROTOCOLS, ForcingSetting
from streamtool.schemas.portable import without_schema
from streamtool.settings import ModelSettings

ForcingChoice = ForcingMethod | Literal["prompt"]
"""A method of forcing a call; `prompt` means that only the prompt demands it."""
_FREE_TEXT_METHODS: Final = frozenset(("structural_tag", "grammar"))
"""Methods that leave text unconstrained."""
CLIENT_CONSTRAINTS: Final = frozenset(
    {"grammar", "json_schema", "structured_outputs", "regex", "ebnf", "structural_tag", "continue_final_message"}
    | {"guided_json", "guided_regex", "guided_choice", "guided_grammar"}
)
"""Fields that a client uses to constrain the model itself."""


def can_force(method: ForcingSetting, protocol: str) -> bool:
    """Return whether upstreams with this protocol support the method."""
    return method == "auto" or method in PROTOCOLS[protocol].forcing


def forcing_method_for(conversation: Conversation, model: ModelSettings, protocol: str) -> ForcingChoice | None:
    """Return the method that forces a call for this request: `prompt` if only the prompt demands it, or None if no
    method applies.
    """
    mode = conversation.choice.mode
    required = mode == "required"
    if not conversation.tools or mode == "none" or not (required or model.constrains_free):
        return None
    method: ForcingChoice = PROTOCOLS[protocol].auto_forcing if model.forcing == "auto" else model.forcing
    own = conversation.options.output is not None or not CLIENT_CONSTRAINTS.isdisjoint(conversation.raw)
    if own or not can_force(method, protocol):
        method = "prompt"
    if required:
        return method
    return method if method in _FREE_TEXT_METHODS and not is_one_object(model.format) else None


def forcing_for(
    conversation: Conversation, method: ForcingMethod, format: str, protocol: str, *, simple: bool = False
) -> Forcing | None:
    """Return a constraint that makes the model write an allowed call, or None if the method cannot express such a
    constraint.

    If `simple` is true, any object is accepted as the arguments.
    """
    choice = conversation.choice
    tools = [tool for tool in conversation.tools if not choice.names or tool.name in choice.names]
    if simple:
        tools = [without_schema(tool) for tool in tools]
    forced = choice.mode == "required"
    if not tools:
        return None
    match method:
        case "prefill":
            return _prefill(tools, format)
        case "schema" | "guided":
            return Forcing(method, call_schema(tools, format))
        case "structural_tag":
            return Forcing(method, call_structural_tag(tools, format, forced=forced, parallel=choice.parallel))
        case "grammar":
            lazy = PROTOCOLS[protocol].lazy_grammar
            # A demanded call is a single one, as with a schema: Gemma 3 270M, which was not trained to end a reply,
            # wrote further calls up to the limit of 150 tokens in 183 of 200 replies to BFCL's requests.
            parallel = choice.parallel and not forced
            made = call_grammar(tools, format, forced=forced, parallel=parallel, lazy=lazy)
            return None if made is None else Forcing(method, made[0], made[1])


def continuation_grammar(
    forcing: Forcing, conversation: Conversation, format: str, *, text: str, again: str = ""
) -> str | None:
    """Return the grammar of a reply that continues `text` under this constraint, or None if the constraint cannot be
    expressed in this way. The reply begins with `again`, the end of the text.
    """
    match forcing.way:
        case "schema" | "guided":
            whole = schema_grammar(forcing.value) if isinstance(forcing.value, dict) else None
        case "grammar":
            whole, begins = str(forcing.value), [at for word in forcing.triggers if (at := text.find(word)) >= 0]
            if begins:
                text = text[min(begins) :]
            elif forcing.triggers:  # the constraint has not begun to apply
                whole = _eager(whole, conversation, format)
        case _:
            return None
    return None if whole is None else rest_grammar(whole, text, again)


def _eager(grammar: str, conversation: Conversation, format: str) -> str | None:
    """Return the grammar that applies from the start of the reply, and allows the same calls as this lazy grammar."""
    for simple in (False, True):
        lazy, eager = (
            forcing_for(conversation, "grammar", format, protocol, simple=simple)
            for protocol in ("completions", "chat")
        )
        if lazy is not None and eager is not None and lazy.value == grammar:
            return str(eager.value)
    return None


def _prefill(tools: Sequence[Tool], format: str) -> Forcing:
    """Return the beginning of a call without trailing whitespace. It includes the tool's name if there is only one
    tool.
    """
    around = frame(format, tools[0].name)
    named = len(tools) == 1
    text = (around.begin if named else around.lead).rstrip()
    marker = around.trigger.rstrip()
    # a bare object may begin like its own arguments, so the whole beginning has to be repeated
    again = text if around.bare or len(marker) > len(text) else marker
    return Forcing("prefill", text, (again,), "{" if named and around.inside == "json" else "")
