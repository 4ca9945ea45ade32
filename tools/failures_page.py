"""Generate the tables in `docs/when-the-model-does-not-call.md` from `streamtool/policy/failures.py` and the results of
`tests/clients/test_endings_installed.py`.
"""

import json
from pathlib import Path
from typing import Any

from streamtool.policy import FAILURES, Failure, Outcome, RejectedRequest

PAGE = Path(__file__).resolve().parent.parent / "docs" / "when-the-model-does-not-call.md"
BEGIN = "<!-- made from the table of {name} -->\n"
ENDINGS = PAGE.parent.parent / "tests" / "clients" / "endings.json"
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
    return {"failures: replies": of_replies, "failures: requests": of_requests, "endings": _endings()}


def _endings() -> str:
    """Return the table of the agents that stop after a fault, from the results of `test_endings_installed.py`."""
    results = json.loads(ENDINGS.read_text(encoding="utf-8"))
    stopped: dict[str, dict[str, list[str]]] = {}
    for name, faults in results["endings"].items():
        agent, _, variant = results["titles"][name].rstrip(")").partition(" (")
        for fault, result in faults.items():
            agents = stopped.setdefault(fault, {})
            if result["executed"]:
                raise ValueError(f"{name} has executed a call after: {fault}")
            if not result["continued"]:
                agents.setdefault(agent, []).append(variant)
    faults_of: dict[str, list[str]] = {}
    for fault, agents in stopped.items():
        listed = (f"{agent} ({'; '.join(variants)})" if any(variants) else agent for agent, variants in agents.items())
        faults_of.setdefault(", ".join(listed) or "none", []).append(fault)
    rows = [_row("; ".join(faults), agents) for agents, faults in faults_of.items()]
    return _row("fault", "agents that stop") + "|---|---|\n" + "".join(rows)


def page() -> str:
    """Return the page with its tables up to date."""
    text = PAGE.read_text(encoding="utf-8")
    for name, table in tables().items():
        before, begin, rest = text.partition(BEGIN.format(name=name))
        if not begin:
            raise ValueError(f"{PAGE.name} has no comment that marks the table of {name}")
        text = before + begin + "\n" + table + "\n" + END + rest.partition(END)[2]
    return text
