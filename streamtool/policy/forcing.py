"""How a model is held to a call: by words alone, or by the strongest method that the upstream supports.

A call is forced when the client's choice demands one. Two methods also serve a free choice, since they leave text as it
is and hold only the arguments to their schema: a structural tag and a grammar. No method changes the tool prompt: it is
a field of the request, or the beginning of the reply. So the prompt stays a prefix of the next one.
"""

from collections.abc import Sequence
from typing import Final, Literal

from streamtool.constraints import call_schema, frame, grammar, plain, structural_tag
from streamtool.conversation import Conversation, Forcing, ForcingMethod, Tool
from streamtool.prompting.one_object import is_whole
from streamtool.protocols.registry import PROTOCOLS, ForcingSetting
from streamtool.settings import ModelSettings

ForcingChoice = ForcingMethod | Literal["prompt"]
"""`prompt`: by words alone."""
_FREE: Final = frozenset(("structural_tag", "grammar"))
"""Methods that leave text free."""
_OWN: Final = frozenset(
    {"grammar", "json_schema", "structured_outputs", "regex", "ebnf", "structural_tag", "continue_final_message"}
    | {"guided_json", "guided_regex", "guided_choice", "guided_grammar"}
)
"""Fields by which a client itself holds the model to something."""


def can_force(method: ForcingSetting, protocol: str) -> bool:
    """Whether the protocol has this method."""
    return method == "auto" or method in PROTOCOLS[protocol].forcing


def forcing_method_for(conversation: Conversation, model: ModelSettings, protocol: str) -> ForcingChoice | None:
    """The method that forces a call of this conversation; `prompt`: words alone; None: nothing is forced."""
    mode = conversation.choice.mode
    if not conversation.tools or mode == "none":
        return None
    method: ForcingChoice = PROTOCOLS[protocol].auto_forcing if model.forcing == "auto" else model.forcing
    own = conversation.options.output is not None or not _OWN.isdisjoint(conversation.raw)
    if own or not can_force(method, protocol):
        method = "prompt"
    if mode == "required":
        return method
    return method if method in _FREE and not is_whole(model.format) else None


def forcing(
    conversation: Conversation, method: ForcingMethod, format: str, protocol: str, *, simple: bool = False
) -> Forcing | None:
    """What to ask of the upstream so that the model writes an allowed call; None: the method cannot express it.

    With `simple` any object does for the arguments.
    """
    choice = conversation.choice
    tools = [tool for tool in conversation.tools if not choice.names or tool.name in choice.names]
    if simple:
        tools = [plain(tool) for tool in tools]
    forced = choice.mode == "required"
    if not tools:
        return None
    match method:
        case "prefill":
            return _beginning(tools, format)
        case "schema" | "guided":
            return Forcing(method, call_schema(tools, format))
        case "structural_tag":
            return Forcing(method, structural_tag(tools, format, forced=forced, parallel=choice.parallel))
        case "grammar":
            lazy = PROTOCOLS[protocol].lazy_grammar
            made = grammar(tools, format, forced=forced, parallel=choice.parallel, lazy=lazy)
            return None if made is None else Forcing(method, made[0], made[1])


def _beginning(tools: Sequence[Tool], format: str) -> Forcing:
    """The beginning of a call, its name included if there is one tool only; without white space at its end."""
    around = frame(format, tools[0].name)
    named = len(tools) == 1
    text = (around.begin if named else around.lead).rstrip()
    marker = around.trigger.rstrip()
    # a bare object begins like its own arguments may: there, all of it has to be repeated
    again = text if around.bare or len(marker) > len(text) else marker
    return Forcing("prefill", text, (again,), "{" if named and around.inside == "json" else "")
