"""Runs the conformance cases through any parser for tool calls in text. Needs only the standard library.

    python -m conformance.export > formats.json
    python conformance/run.py formats.json module:function

`function(pieces, tools, options)` receives the model's text in pieces (a list of strings), the tools (the JSON Schemas
of their parameters by name; a list of names; or None, which accepts any name) and the options of the case (a dict,
usually empty). It returns the outcome:

    {"text": "…", "reasoning": "…", "calls": [{"name": "…", "arguments": "…", "complete": True}, …]}

`arguments` is JSON text or the object itself; `complete` defaults to True. Each case is run with the whole text at
once, and with pieces of several sizes. The output contains a line for each format and for each failure. The exit code
is 0 on success, 1 after a failure, and 2 for an invalid command line.
"""

import argparse
import importlib
import json
import os
import sys

SIZES = (0, 1, 2, 3, 5, 7)


def main(argv=None):
    """Run the command and return its exit code."""
    options = argparse.ArgumentParser(prog="run.py", description="Run the conformance cases through a parser.")
    options.add_argument("file", help="file with the output of `python -m conformance.export`")
    options.add_argument("parser", metavar="module:function", help="function that runs the parser")
    options.add_argument("--format", action="append", help="run only the cases of this format (repeatable)")
    options.add_argument("--sizes", default=",".join(map(str, SIZES)), help="piece sizes; 0 means the whole text")
    options.add_argument("--quiet", action="store_true", help="print only the line for each format")
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
    """Describe the first error in the parser's outcome for a case. Return an empty string if the outcome is correct."""
    expected = outcome(case["events"])
    for size in sizes:
        text = case["text"]
        pieces = [text[at : at + size] for at in range(0, len(text), size)] if size else [text]
        options = case["options"] | ({"reason": case["reason"]} if case["reason"] else {})
        try:
            found = answer(parse(pieces, case["tools"], options))
        except Exception as error:  # noqa: BLE001  a parser that raises has failed the case
            return f"in pieces of {size}: {type(error).__name__}: {error}"
        for part in expected:
            if expected[part] != found[part]:
                return f"in pieces of {size}: {part}: expected {short(expected[part])}, found {short(found[part])}"
    return ""


def outcome(events):
    """Return the outcome described by a case's events."""
    return {
        "text": "".join(event["text"] for event in events if event["type"] == "text"),
        "reasoning": "".join(event["text"] for event in events if event["type"] == "reasoning"),
        "calls": [call(event) for event in events if event["type"] == "call"],
    }


def answer(found):
    """Return a parser's outcome in comparable form."""
    return {
        "text": found.get("text") or "",
        "reasoning": found.get("reasoning") or "",
        "calls": [call(one) for one in found.get("calls") or []],
    }


def call(one):
    """Return a call in comparable form: complete arguments as their values and the order of their keys, incomplete ones
    as text.
    """
    complete = one.get("complete", True)
    arguments = one["arguments"]
    if complete:
        arguments = json.dumps(json.loads(arguments) if isinstance(arguments, str) else arguments, ensure_ascii=False)
    return (one["name"], arguments, complete)


def report(cases, failures, *, quiet):
    """Print a line for each format and for each failure."""
    for form in dict.fromkeys(case["format"] for case in cases):
        own = [case["id"] for case in cases if case["format"] == form]
        failed = [name for name in own if name in failures]
        print(f"{form:<16} {len(own) - len(failed)} of {len(own)}")
        if not quiet:
            for name in failed:
                print(f"    {name}\n        {failures[name]}")
    print(f"{'all':<16} {len(cases) - len(failures)} of {len(cases)}")


def short(value):
    """Return a value on one line, with its middle omitted if it is long."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 160 else f"{text[:80]} … {text[-70:]}"


if __name__ == "__main__":
    sys.exit(main())
