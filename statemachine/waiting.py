"""Why a parser holds what it holds, in words: for people who look on, never on the way of a delta.

What is held is a candidate that has not committed, and the end of the text that may still become something else.
"""

from collections.abc import Iterator
from functools import lru_cache

from statemachine.candidate import Candidate
from statemachine.formats.format import Format, Parameters, openers_of
from statemachine.formats.markers import spelled
from statemachine.formats.openers import closers_of_call
from statemachine.formats.table import REASONING
from statemachine.machine import Machine
from statemachine.states import CALLS, State

_NAMED = 3
"""Markers that are named, at most."""


def waits_for(machine: Machine) -> str:
    """What it waits for; "" if it holds nothing."""
    reader, frames = machine.reader, machine.frames
    pending = reader.text[reader.at :]
    if not pending and not reader.hold.length:
        return ""
    candidate = frames.top.candidate
    match frames.state:
        case State.CANDIDATE:
            return "a candidate" if candidate is None else _candidate(candidate)
        case State.AFTER:
            return "it may close the call, or stand between two calls"
        case state if state in CALLS and candidate is not None:
            return _in_call(candidate, pending)
        case _:
            closers = (*frames.reasoning, *frames.wrappers, *frames.top.closers)
            return _in_text(pending, (*closers, *markers(machine.tables.formats)))


def _candidate(candidate: Candidate) -> str:
    whose = "a candidate" if candidate.format is None else f"a candidate of {candidate.format.name}"
    if not candidate.marked:
        return f"{whose}, which no marker opened, until its name and its arguments have come"
    if candidate.name is None:
        return f"{whose} until its name"
    return f"{whose} until its arguments begin"


def _in_call(candidate: Candidate, pending: str) -> str:
    if pending.startswith("\\"):
        return "half an escape"
    closers = () if candidate.format is None else value_closers(candidate.format)
    text, possible = pending.lstrip(), (*closers, *map(spelled, candidate.wrappers))
    if begun := _begun(text, possible):
        return begun
    if ended := next((close for close in possible if close.strip() and text.startswith(close)), ""):
        return f"`{ended}` ends the value if a key or the closer of the call follows"
    if text[:1] in ('"', "}", "]", ",", ":"):
        return "it may end the value, or be a part of it"
    return "a closer may follow" if pending.isspace() else "a key, or a value whose type is open"


def _in_text(pending: str, possible: tuple[str, ...]) -> str:
    text = pending.lstrip("\r\n")
    if not text.strip():
        return "line ends are markup if a call follows"
    begun = _begun(text, possible)
    if begun:
        return begun
    return "JSON, or a list, may be a call" if text.lstrip()[0] in "{[" else "a call may begin here"


def _begun(text: str, possible: tuple[str, ...]) -> str:
    """Which of these the text may become."""
    found = [f"`{marker.strip()}`" for marker in dict.fromkeys(possible) if _begins(marker, text) and marker.strip()]
    more = [] if len(found) <= _NAMED else ["…"]
    return f"it may become {', '.join([*found[:_NAMED], *more])}" if found and text else ""


def _begins(marker: str, text: str) -> bool:
    return marker.lower().startswith(text.lower())


@lru_cache(maxsize=64)
def markers(formats: tuple[Format, ...]) -> tuple[str, ...]:
    """What may begin in the text, as it is spelled: openers, those of wrappers and of spans, fences, closers."""
    return tuple(dict.fromkeys(marker for form in formats for marker in (*openers(form), *closers(form)))) + tuple(
        spelled(span.open) for span in REASONING
    )


def openers(form: Format) -> Iterator[str]:
    """What may begin in the text: openers, those of wrappers and of spans, as they are spelled."""
    yield from (spelled(opener) for variant in form.variants for opener in openers_of(form, variant))
    yield from (spelled(opener) for opener, _ in form.wrappers)
    yield from (spelled(span.open) for span in form.sections)
    yield from (f"```{info}" for info in form.fence)


def closers(form: Format) -> Iterator[str]:
    """What may close a call of the format, as it is spelled."""
    yield from map(spelled, closers_of_call(form))
    yield from (spelled(close) for _, close in form.wrappers)


def value_closers(form: Format) -> tuple[str, ...]:
    """What may end a value of the arguments, or the call."""
    bodies = [variant.body for variant in form.variants if isinstance(variant.body, Parameters)]
    return (*(spelled(body.close) for body in bodies), *(spelled(body.key) for body in bodies), *closers(form))
