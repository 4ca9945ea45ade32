"""Runs the conformance cases through any parser of tool calls in text. Needs nothing but the standard library.

    python -m conformance.export > formats.json
    python conformance/run.py formats.json module:function

`function(pieces, tools, options)` gets the model's text in pieces (a list of strings), the tools (JSON Schema of the
parameters by name; a list of names; or None: any name is a tool) and the options of the case (a dict, mostly empty). It
returns what the text came to:

    {"text": "…", "reasoning": "…", "calls": [{"name": "…", "arguments": "…", "complete": True}, …]}

`arguments` is JSON text or the object itself; `complete` may be missing, which means True. Each case is run whole and
in pieces of several sizes. A line is printed for each format, and one for each failure. The exit code is 0 if all is
well, 1 if something failed, 2 if the command line is wrong.
"""

import argparse
import importlib
import json
import os
import sys

SIZES = (0, 1, 2, 3, 5, 7)


def main(argv=None):
    """The exit code of a command line."""
    options = argparse.ArgumentParser(prog="run.py", description="Run the conformance cases through a parser.")
    options.add_argument("file", help="what `python -m conformance.export` printed")
    options.add_argument("parser", metavar="module:function", help="the parser")
    options.add_argument("--format", action="append", help="only the cases of this format (may be repeated)")
    options.add_argument("--sizes", default=",".join(map(str, SIZES)), help="sizes of the pieces; 0 is the whole text")
    options.add_argument("--quiet", action="store_true", help="only a line for each format")
    given = options.parse_args(argv)
    with open(given.file, encoding="utf-8") as file:
        cases = json.load(file)["cases"]
    sys.path.insert(0, os.getcwd())
    module, _, name = given.parser.partition(":")
    parse = getattr(importlib.import_module(module), name)
    sizes = [int(size) for size in given.sizes.split(",")]
    wanted = [case for case in cases if not given.format or case["format"] in given.format]
    failures = {case["id"]: failure for case in wanted if (failure := run(case, parse, sizes))}
    report(wanted, failures, quiet=given.quiet)
    return 1 if failures else 0


def run(case, parse, sizes):
    """What is wrong with the parser's answer to a case; "" if nothing is."""
    expected = outcome(case["events"])
    for size in sizes:
        text = case["text"]
        pieces = [text[at : at + size] for at in range(0, len(text), size)] if size else [text]
        options = case["options"] | ({"reason": case["reason"]} if case["reason"] else {})
        try:
            found = answer(parse(pieces, case["tools"], options))
        except Exception as error:  # noqa: BLE001  a parser that fails has failed the case
            return f"in pieces of {size}: {type(error).__name__}: {error}"
        for part in expected:
            if expected[part] != found[part]:
                return f"in pieces of {size}: {part}: expected {short(expected[part])}, found {short(found[part])}"
    return ""


def outcome(events):
    """What the events of a case come to."""
    return {
        "text": "".join(event["text"] for event in events if event["type"] == "text"),
        "reasoning": "".join(event["text"] for event in events if event["type"] == "reasoning"),
        "calls": [call(event) for event in events if event["type"] == "call"],
    }


def answer(found):
    """A parser's answer, to be compared."""
    return {
        "text": found.get("text") or "",
        "reasoning": found.get("reasoning") or "",
        "calls": [call(one) for one in found.get("calls") or []],
    }


def call(one):
    """A call, to be compared: complete arguments by their values and the order of their keys, others by their text."""
    complete = one.get("complete", True)
    arguments = one["arguments"]
    if complete:
        arguments = json.dumps(json.loads(arguments) if isinstance(arguments, str) else arguments, ensure_ascii=False)
    return (one["name"], arguments, complete)


def report(cases, failures, *, quiet):
    """A line for each format, and one for each failure."""
    for form in dict.fromkeys(case["format"] for case in cases):
        own = [case["id"] for case in cases if case["format"] == form]
        failed = [name for name in own if name in failures]
        print(f"{form:<16} {len(own) - len(failed)} of {len(own)}")
        if not quiet:
            for name in failed:
                print(f"    {name}\n        {failures[name]}")
    print(f"{'all':<16} {len(cases) - len(failures)} of {len(cases)}")


def short(value):
    """A value on one line, its middle left out."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 160 else f"{text[:80]} … {text[-70:]}"


if __name__ == "__main__":
    sys.exit(main())
