"""`python -m conformance.table ENGINE… --json FILE`: compares the parsers of engines with streamtool's, by format.

ENGINE is a module in `conformance.runners` (vllm, sglang, mlx, llama_cpp, harmony, ai_sdk, ours). The measurements:

    calls, text     replies in the format (`statemachine.write`): the share in which every call is correct, and the
                    share whose text is correct apart from whitespace; in deltas of four characters
    splits          the share of these replies with the same result for all splits (1, 2, 3, 5, 7, 16 characters)
    habits          the share of the format's conformance cases in which every call is correct: observed output of
                    models, mistakes included
    first           deltas from the beginning of the arguments of a 500-character call until the first argument
                    character is known; null if it is known only at the end
    micros          µs per delta in a 4 KB call, the minimum of three runs

The results are added to the file, so that engines in several environments can share it. streamtool is measured with the
formats of all other engines, so it must be listed last.
"""

import argparse
import importlib
import json
import logging
import random
import time
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from conformance.cases import FOLDER, TOOLS, all_cases
from conformance.run import call
from conformance.runners.tokens import pieces_of
from statemachine import OPT_IN, Call, write

REPLIES = 24
SIZES = (1, 2, 3, 5, 7, 16)
DELTA = 4
LINE = "The parser reads each delta once, as it comes, and says what it knows.\n"
SAID = {"harmony": "<|start|>assistant<|channel|>commentary<|message|>{}<|end|>"}
"""Template for the text before a call, for formats that mark this text up."""
SCHEMA = {"write_file": TOOLS["write_file"]}


def replies(form: str) -> Iterator[tuple[str, str, list[Call]]]:
    """Yield replies in a format: the text, its visible part, its calls."""
    rng = random.Random(form)
    for number in range(REPLIES):
        city = rng.choice(("Paris", "São Paulo", "Nowhere, KS", "東京", 'the "old" town', "a <b> c & d", "x\ny"))
        calls = [Call("get_weather", json.dumps({"city": city, "days": rng.randint(1, 9)}, ensure_ascii=False))]
        if number % 3 == 1:
            calls.append(
                Call("write_file", json.dumps({"path": "a/b.py", "content": "def f(x):\n    return [x, {}]\n"}))
            )
        if number % 3 == 2:
            calls = [
                Call("everything", json.dumps({"flag": True, "number": 2.5, "list": [1, "a"], "object": {"k": "v"}}))
            ]
        said = rng.choice(("", "Let me look.\n", "I will do that < now >.\n\n"))
        spoken = SAID.get(form, "{}").format(said) if said else ""
        try:
            yield spoken + write(calls, form), said, calls
        except ValueError:  # the format cannot represent these arguments
            continue


def cut(text: str, size: int) -> list[str]:
    """Split the text into pieces of this size."""
    return [text[at : at + size] for at in range(0, len(text), size)]


def answered(read: Callable[..., Any], text: str, size: int, tools: Any = TOOLS) -> tuple[str, list[Any]] | None:
    """Return the text and calls in a reply, or None if the parser failed."""
    try:
        found = read(cut(text, size), tools, {})
        return found["text"], [call(one) for one in found["calls"]]
    except Exception:  # noqa: BLE001  a parser that raises has failed
        return None


def measured(module: Any, name: str, form: str) -> dict[str, Any]:
    """Measure one parser with one format."""
    read = getattr(module, name)
    given = list(replies(form))
    right = said = same = 0
    for text, visible, calls in given:
        wanted = [call({"name": one.name, "arguments": one.arguments}) for one in calls]
        found = [answered(read, text, size) for size in (DELTA, *SIZES)]
        first = found[0]
        right += first is not None and first[1] == wanted
        said += first is not None and first[0].split() == visible.split()
        same += first is not None and all(other == first for other in found)
    plain = {"formats"} if form in OPT_IN else set()  # a case in an opt-in format has to enable that format
    habits = [
        case
        for case in all_cases(FOLDER)
        if case.format == form and case.options.keys() <= plain and case.reason is None
    ]
    kept = 0
    for case in habits:
        told = answered(read, case.text, DELTA, case.tools)
        kept += told is not None and told[1] == [call(one) for one in case.events if one["type"] == "call"]
    first_at, micros = timed(module, name, form)
    return {
        "version": module.VERSION, "parser": name, "format": form, "replies": len(given), "calls": right, "text": said,
        "splits": same, "cases": len(habits), "habits": kept, "first": first_at, "micros": micros,
    }  # fmt: skip


def timed(module: Any, name: str, form: str) -> tuple[int | None, float | None]:
    """Measure when the first argument character of a call is known, and the cost of a delta."""
    short = write([Call("write_file", json.dumps({"path": "n.md", "content": LINE * 6}))], form)
    try:
        begins = short.index("n.md")
        run, first, known = module.Run(name, SCHEMA, short), None, 0
        pieces = list(pieces_of(cut(short, DELTA)))
        ends = list(accumulate(map(len, pieces)))
        for number, piece in enumerate(pieces):
            known += run.feed(piece)
            if known and first is None:
                first = sum(1 for piece_end in ends[:number] if piece_end > begins)
        run.close()
        if first is not None and first >= len(pieces) * 2 // 3:
            first = None
        long = write([Call("write_file", json.dumps({"path": "n.md", "content": LINE * 58}))], form)
        pieces = list(pieces_of(cut(long, DELTA)))
        best = min(once(module, name, long, pieces) for _ in range(3))
    except Exception:  # noqa: BLE001  a parser that raises an error is not timed
        return None, None
    return first, round(best * 1e6 / len(pieces), 2)


def once(module: Any, name: str, text: str, pieces: list[str]) -> float:
    """Return the seconds that one call takes, measured by the module's own clock if its parser runs in another
    process.
    """
    clock = vars(module).get("clock", time.process_time)
    run = module.Run(name, SCHEMA, text)
    began: float = clock()
    for piece in pieces:
        run.feed(piece)
    seconds: float = clock() - began
    return seconds


def main() -> None:
    options = argparse.ArgumentParser(description="Compare the parsers of engines.")
    options.add_argument("engines", nargs="+")
    options.add_argument("--json", type=Path, required=True)
    given = options.parse_args()
    logging.disable()
    known = json.loads(given.json.read_text(encoding="utf-8")) if given.json.exists() else {}
    for engine in given.engines:
        module = importlib.import_module(f"conformance.runners.{engine}")
        forms = {form for other in known if other != "ours" for form in known[other]["formats"]}
        wanted = module.PARSERS if engine != "ours" else {form: form for form in sorted(forms)}
        rows = []
        for name, form in wanted.items():
            row = measured(module, name, form)
            print(engine, row, flush=True)
            rows.append(row)
        known[engine] = {"formats": sorted({row["format"] for row in rows}), "rows": rows}
        given.json.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
