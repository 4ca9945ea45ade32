"""Finds losses: compares a client's result and the records with the expected ones."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from attrs import define, evolve, field
from clients import Answer
from plans import Plan
from readers import Got, read
from replies import CLOSER, Shown
from support.validators import (
    Violation,
    validate_chat_error,
    validate_chat_stream,
    validate_chat_whole,
    validate_messages_error,
    validate_messages_stream,
    validate_messages_whole,
    validate_responses_error,
    validate_responses_stream,
    validate_responses_whole,
)

LOSSES: Final = (
    "text lost", "text invented", "markup leaked", "call lost", "call invented", "arguments differ", "wrong reason",
    "clean end of a broken reply", "error without a cause", "invalid stream", "reply that never ended",
    "bytes changed in transit", "incorrect record",
)  # fmt: skip
STREAM: Final = {
    "chat": validate_chat_stream, "messages": validate_messages_stream, "responses": validate_responses_stream,
}  # fmt: skip
WHOLE: Final = {
    "chat": validate_chat_whole, "messages": validate_messages_whole, "responses": validate_responses_whole,
}  # fmt: skip
ERROR: Final = {
    "chat": validate_chat_error, "messages": validate_messages_error, "responses": validate_responses_error,
}  # fmt: skip
HASTY: Final = ("reset", "silence")
"""Faults that may overtake the last text, so that it is discarded on the way or arrives too late."""
UNSEEN: Final = ("", "ended", "error event", "no JSON", "gzip breaks")
"""Faults that are forwarded like a reply, because nothing on the way reads them."""
Loss = tuple[str, str]
"""Kind and description of a loss."""


@define
class Tally:
    """Results of all exchanges."""

    losses: Counter[str] = field(factory=Counter)
    counts: Counter[str] = field(factory=Counter)
    """Number of exchanges of each kind."""
    shown: list[str] = field(factory=list)
    """Descriptions of the losses."""

    def lose(self, plan: Plan, losses: Iterator[Loss]) -> None:
        """Count the losses in an exchange."""
        for kind, what in losses:
            self.losses[kind] += 1
            about = f"{plan.client} stream={plan.stream} tools={plan.tools} choice={plan.choice} {plan.manner}"
            said = f"lie={plan.reply.lie!r} fault={plan.reply.fault!r}"
            self.shown.append(f"{kind}: {plan.model} {about} {said}: {what}")


# --- the bytes on the wire


def of_answer(plan: Plan, answer: Answer, sent: bytes | None) -> Iterator[Loss]:
    """Yield the losses in a response that the client has read completely; `sent` is the body that the upstream sent."""
    if answer.late:
        yield "reply that never ended", f"status {answer.status}, {len(answer.body)} bytes"
    elif plan.passes and answer.status == 200 and plan.reply.fault not in ("a page", "an error as 200"):
        yield from _passed(plan, answer, sent or b"")
    elif not answer.status:
        yield "error without a cause", "the connection was closed without a response"
    elif not answer.ended and not plan.passes:
        yield "error without a cause", "the connection was cut"
    else:
        yield from _read(plan, answer)


def refusal(plan: Plan, answer: Answer) -> Iterator[Loss]:
    """Yield the losses in the response to an invalid request."""
    if answer.late or not answer.ended:
        yield "reply that never ended", "the response to an invalid request"
    elif answer.status != 400:
        yield "error without a cause", f"status {answer.status} for an invalid request"
    else:
        yield from _invalid(ERROR[plan.client](bytes(answer.body)))


def _passed(plan: Plan, answer: Answer, sent: bytes) -> Iterator[Loss]:
    body = bytes(answer.body)
    if plan.reply.fault in UNSEEN:
        if body != sent or not answer.ended:
            yield "bytes changed in transit", f"{len(body)} of {len(sent)} bytes, ended: {answer.ended}"
        return
    before, told, error = body.rpartition(b"\n\ndata: ")
    if answer.ended and not (told and error.startswith(b'{"error":')):
        yield "clean end of a broken reply", f"forwarded, ends in {body[-200:]!r}"
    elif not sent.startswith(before if answer.ended else body):
        yield "bytes changed in transit", f"{body[-200:]!r} is not the beginning of the sent bytes"


def _read(plan: Plan, answer: Answer) -> Iterator[Loss]:
    body = bytes(answer.body)
    if answer.status != 200:
        if not plan.reply.fault:
            yield "error without a cause", f"{answer.status} {body[:300]!r}"
        elif not plan.passes:
            yield from _invalid(ERROR[plan.client](body))
        return
    if plan.passes:
        return
    validate = STREAM if plan.stream else WHOLE
    yield from _invalid(validate[plan.client](body, plan.given, headers=answer.headers))
    try:
        got = read(plan.client, body, stream=plan.stream)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        yield "invalid stream", repr(error)
    else:
        yield from of_reply(plan, got)


def _invalid(violations: list[Violation]) -> Iterator[Loss]:
    for violation in violations:
        if violation.severity == "MUST":
            yield "invalid stream", str(violation)


# --- the reply as read by a client


def of_reply(plan: Plan, got: Got) -> Iterator[Loss]:
    """Yield the losses in a reply as read by a client."""
    want = plan.expected
    if want.reason is None:
        if got.reason is not None or got.error is None:
            yield "clean end of a broken reply", f"{got.reason!r} {got.error!r}"
    elif got.error is not None:
        yield "error without a cause", got.error
        return
    elif got.reason != want.reason:
        yield "wrong reason", f"{got.reason!r} instead of {want.reason!r}"
    if want.reason is None and (not plan.stream or plan.manner == "SDK"):
        return  # these clients get only the error
    losses = [*_content(got, want)]
    until = plan.reply.until
    while losses and until and plan.reply.fault in HASTY:
        until -= 1
        losses = [*_content(got, evolve(plan, replies=(evolve(plan.reply, until=until),)).expected)]
    yield from losses


def _content(got: Got, want: Shown) -> Iterator[Loss]:
    begun = len(got.calls) - len(want.calls)
    yield from _text("text", got.text, want.text, _released(want, got, begun), want)
    yield from _text("reasoning", got.reasoning, want.reasoning, CLOSER[:-1] if want.reason is None else "", want)
    yield from _calls(got, want)


def _released(want: Shown, got: Got, begun: int) -> str:
    """Return the text that may follow the expected text: unfinished calls, if the client has not seen the last of them.

    If a call was cut off within its name, the beginning of the call is text.
    """
    more = got.text[len(want.text) :]
    named = 0 < begun < len(want.begun) or not want.begun
    return more if named and want.rest.endswith(more) else "" if begun else want.rest


def _text(what: str, got: str, want: str, rest: str, shown: Shown) -> Iterator[Loss]:
    if got == want or (got.startswith(want) and rest.startswith(got[len(want) :])):
        return
    same = next((at for at, (a, b) in enumerate(zip(got, want, strict=False)) if a != b), min(len(got), len(want)))
    where = f"{what} at {same} of {len(want)}: {got[same : same + 60]!r} instead of {want[same : same + 60]!r}"
    lost, invented = Counter(want) - Counter(got), Counter(got) - Counter(want)
    if lost:
        yield "text lost", where
    if invented:
        leaked = any(name in got[same:] for name, _ in (*shown.calls, *shown.begun))
        yield "markup leaked" if leaked else "text invented", where
    if not (lost or invented):
        yield "text lost", f"different order, {where}"


def _calls(got: Got, want: Shown) -> Iterator[Loss]:
    for (name, arguments), (its, given) in zip(got.calls, want.calls, strict=False):
        if name != its:
            yield "call lost", f"{its} arrived as {name}"
        elif not _equal(arguments, given):
            yield "arguments differ", f"{arguments[:300]} instead of {json.dumps(given)[:300]}"
    if len(got.calls) < len(want.calls):
        yield "call lost", f"{len(got.calls)} of {len(want.calls)}"
    more = got.calls[len(want.calls) :]
    names = [name for name, _ in want.begun]
    if [name for name, _ in more] != names[: len(more)]:
        yield "call invented", f"{more}, but the calls begun were {names}"


def _equal(arguments: str, given: Any) -> bool:
    try:
        return bool(json.loads(arguments) == given)
    except ValueError:
        return False


# --- the records


def of_record(plan: Plan, records: list[Any], answer: Answer | None) -> Iterator[Loss]:
    """Yield the incorrect values in the records of an exchange whose client has read to the end."""
    if len(records) != 1:
        yield "incorrect record", f"{len(records)} records"
        return
    [record] = records
    want = plan.expected
    broke = want.reason is None
    told = record["error"] is not None
    if plan.passes:
        if record["outcome"] not in ("passed", "error") or (told and not broke):
            yield "incorrect record", f"{record['outcome']} {record['error']}"
        return
    if told != broke:
        yield (
            "incorrect record",
            f"outcome {record['outcome']}, error {record['error']}, fault {plan.reply.fault!r}",
        )
    if answer is not None and record["status"] != answer.status:
        yield "incorrect record", f"status {record['status']}, but the client received {answer.status}"
    causes = tuple(attempt["reason"] for attempt in record["attempts"])
    if causes != plan.causes:
        yield "incorrect record", f"attempts {causes} instead of {plan.causes}"
    if broke:
        return
    if record["calls"] != len(want.calls):
        yield "incorrect record", f"{record['calls']} calls of {len(want.calls)}"
    discarded = sum(record["discarded"].values())
    if bool(discarded) != bool(want.discarded):
        yield "incorrect record", f"discarded {record['discarded']} instead of {want.discarded}"
