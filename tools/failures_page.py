"""Generate the tables of failures in `docs/when-the-model-does-not-call.md` from `streamtool/policy/failures.py`."""

from pathlib import Path
from typing import Any

from streamtool.policy import FAILURES, Failure, Outcome, RejectedRequest

PAGE = Path(__file__).resolve().parent.parent / "docs" / "when-the-model-does-not-call.md"
BEGIN = "<!-- made from the table of failures: {name} -->\n"
END = "<!-- end -->"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n".replace("|  |", "| |")


def _listed(failure: Failure[Any]) -> bool:
    return failure.outcome is not Outcome.ANSWERED and failure.cause != "protocol"


def _outcome(failure: Failure[Any]) -> str:
    return "either" if failure.outcome is Outcome.EITHER else failure.outcome.value


def tables() -> dict[str, str]:
    """Return the tables by their names on the page."""
    replies = [row for row in FAILURES if _listed(row) and row.on is not RejectedRequest]
    requests = [row for row in FAILURES if row.on is RejectedRequest]
    of_replies = _row("class", "detected on", "when", "outcome", "setting")
    of_replies += "|---|---|---|---|---|\n"
    of_replies += "".join(_row(r.cause, r.on.MOMENT, r.when, _outcome(r), r.setting) for r in replies)
    of_requests = _row("class", "when", "next attempt", "setting") + "|---|---|---|---|\n"
    of_requests += "".join(_row(r.cause, r.when, r.effect.value, r.setting) for r in requests)
    return {"replies": of_replies, "requests": of_requests}


def page() -> str:
    """Return the page with its tables up to date."""
    text = PAGE.read_text(encoding="utf-8")
    for name, table in tables().items():
        before, begin, rest = text.partition(BEGIN.format(name=name))
        if not begin:
            raise ValueError(f"{PAGE.name} has no comment that marks the table of {name}")
        text = before + begin + "\n" + table + "\n" + END + rest.partition(END)[2]
    return text
