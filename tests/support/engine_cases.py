"""The conformance cases for engines: a reply in pieces, and the result of the parser alone."""

import random

from attrs import frozen

from conformance.cases import FOLDER, all_cases
from statemachine import ArgumentsDelta, CallStart, Parser, ReasoningDelta, TextDelta

CASES = [case for case in all_cases(FOLDER) if not case.options and case.reason is None and case.tools]
"""Cases without options that only a caller of the parser can set. An engine uses no parser for requests without
tools.
"""


@frozen
class Outcome:
    """The result of a reply."""

    text: str
    calls: list[tuple[str, str]]
    reasoning: str = ""


def pieces_of(case, seed=0):
    """Return the reply in random pieces, the same in each run."""
    return in_pieces(case.text, f"{case.id}{seed}")


def in_pieces(text, seed, sizes=(1, 2, 3, 5, 8, 13)):
    """Return a text in random pieces, the same for the same seed; those of a long text are longer."""
    rng, pieces, longer = random.Random(seed), [], 1 + len(text) // 1000
    while text:
        size = rng.choice(sizes) * longer
        pieces.append(text[:size])
        text = text[size:]
    return pieces


def alone(case):
    """Return the parser's result for a case."""
    text, reasoning, calls = [], [], []
    parser = Parser(case.tools)
    for event in [*parser.feed(case.text), *parser.close()]:
        match event:
            case TextDelta(text=piece):
                text.append(piece)
            case ReasoningDelta(text=piece):
                reasoning.append(piece)
            case CallStart(name=name):
                calls.append((name, ""))
            case ArgumentsDelta(text=piece):
                calls[-1] = (calls[-1][0], calls[-1][1] + piece)
    return Outcome("".join(text), calls, "".join(reasoning))


def openai_tools(case):
    """Return the tools of a case as a client sends them."""
    schemas = case.tools if isinstance(case.tools, dict) else dict.fromkeys(case.tools)
    return [
        {"type": "function", "function": {"name": name} | ({} if schema is None else {"parameters": schema})}
        for name, schema in schemas.items()
    ]
