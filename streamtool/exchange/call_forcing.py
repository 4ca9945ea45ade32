"""Call forcing within one request: the constraint that makes the model call a tool, and declined constraints."""

import json
from collections.abc import Callable
from hashlib import sha256

from attrs import evolve

from streamtool.core.conversation import Conversation, Forcing, Message, TextPart
from streamtool.core.values import frozen
from streamtool.forcing import forcing_for, forcing_method_for
from streamtool.policy import RefusedPart
from streamtool.settings import ModelSettings


@frozen
class CallForcing:
    """The forcing of one attempt, including the findings of earlier attempts."""

    current: Forcing | None = None
    """The constraint that the request contains in addition to the prompt's demand, if any."""
    word: str = ""
    """The method's name in the record: `prompt`, a forcing method, or "" if no call is forced."""
    declined: frozenset[str] = frozenset()
    """The methods and constraints that the upstream has declined in this exchange."""
    doubted: str = ""
    """The constraint of an attempt that was declined without a stated reason, or an empty string."""

    @property
    def whole(self) -> bool:
        """Whether the constraint covers the reply from its first character to its last."""
        return self.current is not None and self.current.way in ("schema", "guided")


NO_FORCING = CallForcing()


def forced(
    before: CallForcing, asked: Conversation, model: ModelSettings, protocol: str, lacks: Callable[[str], bool]
) -> CallForcing:
    """Return the forcing for the next attempt: as strict as the client wants and the upstream supports.

    `lacks` returns whether the upstream is known to lack a method or constraint.
    """
    method = forcing_method_for(asked, model, protocol)
    if method is None:  # no attempt of this exchange forces a call
        return before
    if method == "prompt":
        return evolve(before, current=None, word=method)

    def declines(ability: str) -> bool:
        return ability in before.declined or lacks(ability)

    if not declines(method):
        for simple in (False, True):  # with the tools' schemas, then with any object as arguments
            made = forcing_for(asked, method, model.format, protocol, simple=simple)
            if made is not None and not declines(_key(made)):
                return evolve(before, current=made, word=method)
    return evolve(before, current=None, word="prompt" if asked.choice.mode == "required" else "")


def constrained(projected: Conversation, constraint: Forcing | None) -> Conversation:
    """Return the projected conversation with a constraint. The text of a prefill becomes the last message."""
    if constraint is None:
        return projected
    messages = projected.messages
    if constraint.way == "prefill":
        messages = (*messages, Message("assistant", (TextPart(constraint.value),)))
    return evolve(projected, messages=messages, forcing=constraint)


def without(before: CallForcing, part: RefusedPart) -> tuple[CallForcing, str]:
    """Return the forcing without the part that the upstream declined, and a key that identifies this part.

    If the method was declined, or the upstream gave no reason, the next attempts rely on the prompt alone.
    """
    current = before.current
    assert current is not None  # noqa: S101  only an attempt with a constraint can be declined for it
    lacking = current.way if part == "method" else _key(current)
    declined = before.declined | {lacking if part == "constraint" else current.way}
    return evolve(before, declined=declined, doubted=lacking if part == "unclear" else ""), lacking


def _key(made: Forcing) -> str:
    """Return a key that identifies a constraint."""
    return f"{made.way} {sha256(json.dumps(made.value).encode()).hexdigest()[:32]}"
