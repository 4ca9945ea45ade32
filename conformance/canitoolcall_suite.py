"""`python -m conformance.canitoolcall_suite [ID…]`: replays the fixtures of the package `canitoolcall` through
streamtool's parser, and judges the results by the package's own checks.

The fixtures are recorded or rendered replies of nine families of models. Each is read at once and in pieces of several
sizes, down to one character; all of them count. The parser has the settings that the proxy derives from the model's
name and the end of its prompt, and no others. Calls that the model did not finish are not counted as calls, because no
client executes them: they end with the finish reason `length`.

The output contains a line for each family, and each fixture that fails with the reason: that of the check or, for those
in `BETTER`, ours. With ids, only these fixtures are replayed, and everything about them is printed. The exit code is 0
if all fixtures pass except those in `BETTER`, otherwise 1.
"""

import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from canitoolcall.checks import run_checks
from canitoolcall.fixtures import Family, Fixture, load_families, load_fixtures
from canitoolcall.results import Observation, ParsedToolCall, ParseResult, Status, worst_status

from conformance.ours import read
from conformance.runners.tokens import pieces_of
from statemachine.formats import DEFAULT
from streamtool.models.families import family_of
from streamtool.models.generation_prompt import last_opener

SEEDS = (1, 2, 3)
"""Seeds of random splits into pieces of one to eight characters, which split special tokens."""

BETTER = {
    "deepseek/vllm-v3-malformed-missing-call-tokens": "its name and arguments are complete, so the call is delivered",
    "qwen3-hermes/vllm-invalid-json-missing-brace": "the arguments are complete, so the call is delivered",
    "llama/l4-truncated-missing-close-bracket": "the first of two calls is complete, so it is delivered, as the suite "
    "itself demands of other formats; only the second one is cut off",
    "gpt-oss/llamacpp-builtin-python-recipient": "code for a tool that is not offered is shown as reasoning and not "
    "lost",
}
"""Fixtures that fail by the checks, each with the reason why a client is served better."""


def replay(fixture: Fixture, family: Family | None) -> Observation:
    """Return what the parser finds in the reply, at once and in pieces."""
    text = fixture.raw_output
    streams = {
        "token": [*pieces_of(text[at : at + 4] for at in range(0, len(text), 4))],
        "rand:0:1": [*text],
        **{f"rand:{seed}:8": [*random_pieces(text, seed)] for seed in SEEDS},
    }
    return Observation(
        nonstream=parse(fixture, family, [text]),
        streams={name: parse(fixture, family, pieces) for name, pieces in streams.items()},
    )


def random_pieces(text: str, seed: int) -> Iterator[str]:
    """Yield the text in pieces of one to eight characters."""
    rng, at = random.Random(seed), 0
    while at < len(text):
        size = rng.randint(1, 8)
        yield text[at : at + size]
        at += size


def parse(fixture: Fixture, family: Family | None, pieces: Sequence[str]) -> ParseResult:
    """Return the parser's result for a reply in pieces."""
    found = read(pieces, tools_in(fixture), options_for(fixture, family))
    return ParseResult(
        content=found["text"] or None,
        reasoning_content=found["reasoning"] or None,
        tool_calls=tuple(ParsedToolCall(one["name"], one["arguments"]) for one in found["calls"] if one["complete"]),
    )


def tools_in(fixture: Fixture) -> dict[str, Any]:
    """Return the schemas of the tools by name."""
    tools = [tool["function"] for tool in fixture.tools]
    return {tool["name"]: tool.get("parameters") or {} for tool in tools}


def options_for(fixture: Fixture, family: Family | None) -> dict[str, Any]:
    """Return the parser's options: those that the proxy derives from the name of the model and from its prompt."""
    known = family_of(fixture.reference_model)
    model = family.reference_for(fixture.reference_model) if family else None
    prompt = fixture.generation_prompt
    if prompt is None:
        prompt = (model.default_generation_prompt if model else "") or ""
    return {
        "formats": list(dict.fromkeys([*DEFAULT, *known.listen, known.format])),
        "calls_in_reasoning": known.calls_in_reasoning,
        "prefix": last_opener(prompt),
        "reason": "length" if fixture.truncated else None,
    }


def judge(fixture: Fixture, family: Family | None) -> tuple[Status, str]:
    """Return the status of a fixture, and the first reason for a failure."""
    rows = run_checks(fixture, family, replay(fixture, family))
    status = worst_status(row.status for row in rows)
    return status, next((f"{row.check}, {row.strategy}: {row.detail}" for row in rows if row.status is status), "")


def main(ids: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    families = load_families()
    counts: dict[str, Counter[Status]] = {}
    failed = 0
    for fixture in load_fixtures():
        if ids and fixture.id not in ids:
            continue
        family = families.get(fixture.family)
        status, reason = judge(fixture, family)
        counts.setdefault(fixture.family, Counter())[status] += 1
        if ids:
            print(
                fixture.raw_output, fixture.expected or fixture.expected_error, options_for(fixture, family), sep="\n"
            )
            print(parse(fixture, family, [fixture.raw_output]))
        passed = status in (Status.PASS, Status.SOFT_PASS)
        if passed and fixture.id in BETTER:
            print(f"{fixture.id}: passes, so `BETTER` should not contain it")
        elif not passed:
            print(f"{fixture.id}: {BETTER.get(fixture.id, reason)}")
        failed += passed == (fixture.id in BETTER)
    for name, found in counts.items():
        print(f"{name:<14}", ", ".join(f"{status.value} {number}" for status, number in sorted(found.items())))
    total = sum(counts.values(), Counter())
    print(f"{'all':<14} {total[Status.PASS] + total[Status.SOFT_PASS]} of {total.total()}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
