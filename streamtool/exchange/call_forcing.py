"""How the attempts of one request hold the model to a call, and what the upstream turned out not to support."""

from collections.abc import Callable

from attrs import evolve

from streamtool.conversation import Conversation, Forcing, Message, TextPart
from streamtool.policy import can_force, forcing, forcing_method_for
from streamtool.settings import ModelSettings


class CallForcing:
    """The forcing of one request. `unsupported` tells whether the upstream is known not to support a method."""

    __slots__ = ("_model", "_protocol", "_refused", "_unsupported", "current", "word")

    def __init__(self, model: ModelSettings, protocol: str, unsupported: Callable[[str], bool]) -> None:
        self._model = model
        self._protocol = protocol
        self._unsupported = unsupported
        self._refused = False
        self.current: Forcing | None = None
        """What the request of the last attempt held the model to, beside words."""
        self.word = ""
        """The method of the last attempt, as the record names it: `prompt`, a method, or "" for none."""

    @property
    def impossible(self) -> bool:
        """The protocol has no such method as the settings want."""
        return not can_force(self._model.forcing, self._protocol)

    def refuse(self) -> None:
        """The upstream has refused the method: the next attempts use words."""
        self._refused = True

    def apply(self, asked: Conversation, projected: Conversation) -> Conversation:
        """The projected conversation with what forces a call, as far as the client wants one and the upstream can."""
        method = forcing_method_for(asked, self._model, self._protocol)
        self.current, self.word = None, method or ""
        if method is None or method == "prompt":
            return projected
        if not (self._refused or self._unsupported(method)):
            self.current = forcing(asked, method, self._model.format, self._protocol)
        if self.current is None:
            self.word = "prompt" if asked.choice.mode == "required" else ""
            return projected
        messages = projected.messages
        if method == "prefill":
            messages = (*messages, Message("assistant", (TextPart(self.current.value),)))
        return evolve(projected, messages=messages, forcing=self.current)
