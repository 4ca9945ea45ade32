"""The tables of `docs/loop.md` that list the failures, made from `streamtool/policy/failures.py`."""

from pathlib import Path

from streamtool.policy import FAILURES, Failure, Outcome, RefusedRequest

PAGE = Path(__file__).resolve().parent.parent / "docs" / "loop.md"
BEGIN = "<!-- made from the table of failures: {name} -->\n"
END = "<!-- end -->"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n".replace("|  |", "| |")


def _listed(failure: Failure) -> bool:
    return failure.outcome is not Outcome.ANSWERED and failure.cause != "protocol"


def tables() -> dict[str, str]:
    """Each table by its name on the page."""
    replies = [row for row in FAILURES if _listed(row) and row.on is not RefusedRequest]
    requests = [row for row in FAILURES if row.on is RefusedRequest]
    calls = [row for row in FAILURES if not _listed(row)]
    of_replies = _row("class", "detected on", "when", "what becomes of the attempt", "which setting")
    of_replies += "|---|---|---|---|---|\n"
    of_replies += "".join(_row(r.cause, r.on.MOMENT, r.when, r.outcome.value, r.setting) for r in replies)
    of_requests = _row("class", "when", "which setting") + "|---|---|---|\n"
    of_requests += "".join(_row(r.cause, r.when, r.setting) for r in requests)
    of_agents = _row("class", "when", "what becomes of it") + "|---|---|---|\n"
    of_agents += "".join(_row(r.cause, r.when, r.outcome.value) for r in calls)
    return {"replies": of_replies, "requests": of_requests, "agents": of_agents}


def page() -> str:
    """The whole page, its tables as they have to be."""
    text = PAGE.read_text(encoding="utf-8")
    for name, table in tables().items():
        before, begin, rest = text.partition(BEGIN.format(name=name))
        if not begin:
            raise ValueError(f"docs/loop.md has no place for the table of {name}")
        text = before + begin + "\n" + table + "\n" + END + rest.partition(END)[2]
    return text
