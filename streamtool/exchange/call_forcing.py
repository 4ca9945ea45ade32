"""How the attempts of one request hold the model to a call, and what the upstream turned out not to support."""

import json
from collections.abc import Callable
from hashlib import sha256

from attrs import evolve

from streamtool.conversation import Conversation, Forcing, ForcingMethod, Message, TextPart
from streamtool.policy import RefusedPart, can_force, forcing, forcing_method_for
from streamtool.settings import ModelSettings


class CallForcing:
    """The forcing of one request. `unsupported` tells whether the upstream is known not to support a method."""

    __slots__ = ("_model", "_protocol", "_refused", "_unsupported", "current", "doubted", "word")

    def __init__(self, model: ModelSettings, protocol: str, unsupported: Callable[[str], bool]) -> None:
        self._model = model
        self._protocol = protocol
        self._unsupported = unsupported
        self._refused: set[str] = set()
        """Methods and constraints that the upstream has refused in this request."""
        self.doubted = ""
        """The constraint of an attempt that was refused without a reason."""
        self.current: Forcing | None = None
        """What the request of the last attempt held the model to, beside words."""
        self.word = ""
        """The method of the last attempt, as the record names it: `prompt`, a method, or "" for none."""

    @property
    def impossible(self) -> bool:
        """The protocol has no such method as the settings want."""
        return not can_force(self._model.forcing, self._protocol)

    def refuse(self, part: RefusedPart) -> str:
        """The upstream has refused the last attempt. What is to be remembered of it: the method, or the constraint.

        Without the method, and where it is not said what is refused, the next attempts use words.
        """
        current = self.current
        assert current is not None  # noqa: S101  whoever calls has seen it
        refused = current.way if part == "method" else _key(current)
        self._refused.add(refused if part == "constraint" else current.way)
        self.doubted = refused if part == "unclear" else ""
        return refused

    def _lacks(self, ability: str) -> bool:
        return ability in self._refused or self._unsupported(ability)

    def _possible(self, asked: Conversation, method: ForcingMethod) -> Forcing | None:
        """What forces a call, and was not refused: with the tools' schemas, else with any object for arguments."""
        if self._lacks(method):
            return None
        for simple in (False, True):
            made = forcing(asked, method, self._model.format, self._protocol, simple=simple)
            if made is not None and not self._lacks(_key(made)):
                return made
        return None

    def apply(self, asked: Conversation, projected: Conversation) -> Conversation:
        """The projected conversation with what forces a call, as far as the client wants one and the upstream can."""
        method = forcing_method_for(asked, self._model, self._protocol)
        self.current, self.word = None, method or ""
        if method is None or method == "prompt":
            return projected
        self.current = self._possible(asked, method)
        if self.current is None:
            self.word = "prompt" if asked.choice.mode == "required" else ""
            return projected
        messages = projected.messages
        if method == "prefill":
            messages = (*messages, Message("assistant", (TextPart(self.current.value),)))
        return evolve(projected, messages=messages, forcing=self.current)


def _key(made: Forcing) -> str:
    """The word by which a constraint is remembered."""
    return f"{made.way} {sha256(json.dumps(made.value).encode()).hexdigest()[:32]}"
