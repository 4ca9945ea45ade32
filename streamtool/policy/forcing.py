"""How a model is held to a call: by words alone, or by the strongest means that the upstream is said to have.

A call is forced when the client's choice demands one. Two ways also serve a free choice, since they leave text as it
is and hold only the arguments to their schema: a structural tag and a grammar. None goes into the contract; they are
fields of the request, or the beginning of the reply. So the prompt stays a prefix of the next one.
"""

from collections.abc import Sequence
from typing import Final, Literal

from streamtool.constraints import call_schema, frame, grammar, structural_tag
from streamtool.conversation import Conversation, Forcing, ForcingMethod, Tool
from streamtool.prompting.one_object import is_whole
from streamtool.protocols.registry import PROTOCOLS, ForcingSetting
from streamtool.settings import ModelSettings

ForcingChoice = ForcingMethod | Literal["prompt"]
"""`prompt`: by words alone."""
_FREE: Final = frozenset(("structural_tag", "grammar"))
"""Ways that leave text free."""
_OWN: Final = frozenset(
    {"grammar", "json_schema", "structured_outputs", "regex", "ebnf", "structural_tag", "continue_final_message"}
    | {"guided_json", "guided_regex", "guided_choice", "guided_grammar"}
)
"""Fields by which a client itself holds the model to something."""


def can_force(way: ForcingSetting, protocol: str) -> bool:
    """Whether there is this way in this protocol."""
    return way == "auto" or way in PROTOCOLS[protocol].forcing


def forcing_method_for(conversation: Conversation, model: ModelSettings, protocol: str) -> ForcingChoice | None:
    """The way to force a call of this conversation; `prompt` by words alone, None: nothing is forced."""
    mode = conversation.choice.mode
    if not conversation.tools or mode == "none":
        return None
    row = PROTOCOLS[protocol]
    way: ForcingChoice = row.auto_forcing if model.forcing == "auto" else model.forcing  # type: ignore[assignment]  # no row says "auto"
    own = conversation.options.output is not None or not _OWN.isdisjoint(conversation.raw)
    if own or not can_force(way, protocol):
        way = "prompt"
    if mode == "required":
        return way
    return way if way in _FREE and not is_whole(model.format) else None


def forcing(conversation: Conversation, way: ForcingMethod, format: str, protocol: str) -> Forcing | None:
    """What to ask of the upstream so that the model writes an allowed call; None: it cannot be said in this way."""
    choice = conversation.choice
    tools = [tool for tool in conversation.tools if not choice.names or tool.name in choice.names]
    forced = choice.mode == "required"
    if not tools:
        return None
    match way:
        case "prefill":
            return _beginning(tools, format)
        case "schema" | "guided":
            return Forcing(way, call_schema(tools, format))
        case "structural_tag":
            return Forcing(way, structural_tag(tools, format, forced=forced, parallel=choice.parallel))
        case "grammar":
            made = grammar(
                tools, format, forced=forced, parallel=choice.parallel, lazy=PROTOCOLS[protocol].lazy_grammar
            )
            return None if made is None else Forcing(way, made[0], made[1])


def _beginning(tools: Sequence[Tool], format: str) -> Forcing:
    """The beginning of a call, its name included if there is one tool only; without white space at its end."""
    around = frame(format, tools[0].name)
    named = len(tools) == 1
    text = (around.begin if named else around.lead).rstrip()
    marker = around.trigger.rstrip()
    # a bare object begins like its own arguments may: there, all of it has to be repeated
    again = text if around.bare or len(marker) > len(text) else marker
    return Forcing("prefill", text, (again,), "{" if named and around.inside == "json" else "")
