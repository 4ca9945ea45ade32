"""Human-readable reasons why text is buffered. They are for debugging only and are never computed on the hot path.

Two kinds of text are buffered: a candidate that has not been committed, and the end of the available text if it may
still become something else.
"""

from collections.abc import Iterator
from functools import lru_cache

from statemachine.formats.format import Format, Parameters, openers_of
from statemachine.formats.markers import spell
from statemachine.formats.openers import closers_of_call
from statemachine.formats.table import REASONING
from statemachine.machine.candidate import Candidate
from statemachine.machine.machine import Machine
from statemachine.machine.states import CALLS, State

_NAMED = 3
"""Maximum number of markers to name."""


def waits_for(machine: Machine) -> str:
    """Return the reason why text is buffered, or "" if nothing is buffered."""
    reader, frames = machine.reader, machine.frames
    pending = reader.text[reader.at :]
    if not pending and not reader.buffered.length:
        return ""
    candidate = frames.top.candidate
    match frames.state:
        case State.CANDIDATE:
            return "a candidate" if candidate is None else _candidate(candidate)
        case State.AFTER:
            return "it may close the call, or separate two calls"
        case state if state in CALLS and candidate is not None:
            return _in_call(candidate, pending)
        case _:
            closers = (*frames.reasoning, *frames.wrappers, *frames.top.closers)
            return _in_text(pending, (*closers, *markers(machine.tables.formats)))


def _candidate(candidate: Candidate) -> str:
    whose = "a candidate" if candidate.format is None else f"a candidate in the format {candidate.format.name}"
    if not candidate.marked:
        return f"{whose} without a marker, waiting for its name and arguments"
    if candidate.name is None:
        return f"{whose}, waiting for its name"
    return f"{whose}, waiting for its arguments"


def _in_call(candidate: Candidate, pending: str) -> str:
    if pending.startswith("\\"):
        return "an incomplete escape"
    closers = () if candidate.format is None else value_closers(candidate.format)
    text, possible = pending.lstrip(), (*closers, *map(spell, candidate.wrappers))
    if begun := _possible_markers(text, possible):
        return begun
    if ended := next((close for close in possible if close.strip() and text.startswith(close)), ""):
        return f"`{ended}` ends the value if a key or the call's closer follows"
    if text[:1] in ('"', "}", "]", ",", ":"):
        return "it may end the value, or be part of it"
    return "a closer may follow" if pending.isspace() else "a key, or a value whose type is not known yet"


def _in_text(pending: str, possible: tuple[str, ...]) -> str:
    text = pending.lstrip("\r\n")
    if not text.strip():
        return "newlines, which are markup if a call follows"
    begun = _possible_markers(text, possible)
    if begun:
        return begun
    return "JSON or a list that may be a call" if text.lstrip()[0] in "{[" else "a call may begin here"


def _possible_markers(text: str, possible: tuple[str, ...]) -> str:
    """Return the markers that the text may become, as a phrase."""
    found = [
        f"`{marker.strip()}`" for marker in dict.fromkeys(possible) if _may_become(marker, text) and marker.strip()
    ]
    more = [] if len(found) <= _NAMED else ["…"]
    return f"it may become {', '.join([*found[:_NAMED], *more])}" if found and text else ""


def _may_become(marker: str, text: str) -> bool:
    return marker.lower().startswith(text.lower())


@lru_cache(maxsize=64)
def markers(formats: tuple[Format, ...]) -> tuple[str, ...]:
    """Return the spellings of all markers that may begin in text: those of calls, wrappers, spans and fences."""
    return tuple(dict.fromkeys(marker for form in formats for marker in (*openers(form), *closers(form)))) + tuple(
        spell(span.open) for span in REASONING
    )


def openers(form: Format) -> Iterator[str]:
    """Yield the spellings of the openers that may begin in text."""
    yield from (spell(opener) for variant in form.variants for opener in openers_of(form, variant))
    yield from (spell(opener) for opener, _ in form.wrappers)
    yield from (spell(span.open) for span in form.sections)
    yield from (f"```{info}" for info in form.fence)


def closers(form: Format) -> Iterator[str]:
    """Yield the spellings of the markers that may close a call in this format."""
    yield from map(spell, closers_of_call(form))
    yield from (spell(close) for _, close in form.wrappers)


def value_closers(form: Format) -> tuple[str, ...]:
    """Return the markers that may end a value of the arguments, or the call."""
    bodies = [variant.body for variant in form.variants if isinstance(variant.body, Parameters)]
    return (*(spell(body.close) for body in bodies), *(spell(body.key) for body in bodies), *closers(form))
