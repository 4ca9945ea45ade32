"""Reads a call in small deltas with streamtool and other software: cost by length, and time to the first argument.

    python benchmarks/readers.py [--seconds S] [--json FILE] [NAME...]

Each reader gets the same call with 1 KB to 256 KB of arguments, four characters at a time. Once a call takes more than
S seconds, longer calls are skipped. `first` is the number of argument characters that had arrived when the reader
returned the first of them; `right` is whether the reader's output matches the call.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from attrs import frozen
from common import Row, Table
from stand_ins import stand_ins

LENGTHS = (1, 4, 16, 64, 256)
"""Lengths of the arguments, in KB."""
DELTA = 4
"""Characters per delta."""
ROUNDS = 3
_WORDS = 'The parser reads each delta once, "as it comes",\nand tells what it knows.\t'
_NAME = "write_file"
_SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"}}}

Feed = Callable[[Any], str]
"""Takes a delta and returns the argument characters that the delta completes."""


def arguments(size: int) -> dict[str, str]:
    """Return arguments of `size` KB."""
    return {"path": "notes.md", "content": (_WORDS * (size * 1024 // len(_WORDS) + 1))[: size * 1024]}


def tool_call(given: dict[str, str]) -> tuple[str, str, str]:
    """Return the text before the arguments, the arguments, and the text after them."""
    return f'<tool_call>\n{{"name": "{_NAME}", "arguments": ', json.dumps(given), "}\n</tool_call>"


def harmony(given: dict[str, str]) -> tuple[str, str, str]:
    head = f"<|channel|>commentary to=functions.{_NAME} <|constrain|>json<|message|>"
    return head, json.dumps(given), "<|call|>"


def pythonic(given: dict[str, str]) -> tuple[str, str, str]:
    return f"[{_NAME}(", ", ".join(f"{name}={json.dumps(value)}" for name, value in given.items()), ")]"


def characters(parts: tuple[str, str, str]) -> list[Any]:
    """Return the deltas of a call."""
    whole = "".join(parts)
    return [whole[at : at + DELTA] for at in range(0, len(whole), DELTA)]


# --- the readers: each call gets a new one


def streamtool(name: str) -> Feed:
    from streamtool import ArgumentsDelta, Parser

    parser = Parser(tools=[{"name": _NAME, "parameters": _SCHEMA}], formats=(name,))

    def feed(delta: str) -> str:
        return "".join([event.text for event in parser.feed(delta) if isinstance(event, ArgumentsDelta)])

    return feed


def reparsing(parse: Callable[[str], Any]) -> Feed:
    """Return a feed that parses all text so far at every delta, and compares the result with the previous result."""
    text, known = "", ""

    def feed(delta: str) -> str:
        nonlocal text, known
        text += delta
        start = text.find('"arguments": ') + 13
        if start < 13:
            return ""
        end = text.rfind("}\n")  # these parsers accept nothing after the value
        end = len(text) - 1 if end < 0 and text.endswith("}}") else end
        try:
            found = parse(text[start : end if end >= 0 else len(text)])
        except ValueError:
            return ""
        said = "".join([value for value in found.values() if isinstance(value, str)])
        new, known = said[len(known) :], said
        return new

    return feed


def jiter() -> Feed:
    from jiter import from_json

    return reparsing(lambda text: from_json(text.encode(), partial_mode="trailing-strings", cache_mode="none"))


def partial_json_parser() -> Feed:
    from partial_json_parser import loads

    return reparsing(loads)


def sglang(name: str, kind: str) -> Feed:
    names = (f"{name}_detector", "base_format_detector", "core_types", "utils")
    with stand_ins("sglang", *(f"srt.function_call.{one}" for one in names)):
        module = import_module(f"sglang.srt.function_call.{name}_detector")
    detector = getattr(module, kind)()
    tools = [SimpleNamespace(type="function", function=SimpleNamespace(name=_NAME, parameters=_SCHEMA))]

    def feed(delta: str) -> str:
        found = detector.parse_streaming_increment(delta, tools)
        return "".join([call.parameters for call in found.calls if call.parameters])

    return feed


class _Tokenizer:
    """Implements the part of a tokenizer that the detector needs."""

    def get_vocab(self) -> dict[str, int]:
        return {"<tool_call>": 1, "</tool_call>": 2}


def vllm() -> Feed:
    real = [f"tool_parsers.{one}" for one in ("hermes_tool_parser", "abstract_tool_parser", "utils")]
    real += [f"entrypoints.{one}.protocol" for one in ("generate.base", "serve.engine")]
    with stand_ins("vllm", *real):
        module: Any = import_module("vllm.tool_parsers.hermes_tool_parser")
    module.is_mistral_tokenizer = lambda _: False
    module.make_tool_call_id = lambda: "call"
    tool = SimpleNamespace(type="function", function=SimpleNamespace(name=_NAME, parameters=_SCHEMA))
    detector, request = module.Hermes2ProToolParser(_Tokenizer(), [tool]), SimpleNamespace(tools=[tool])
    text = ""

    def feed(delta: str) -> str:
        nonlocal text
        before, text = text, text + delta
        found = detector.extract_tool_calls_streaming(before, text, delta, (), (0,), (0,), request)
        calls = found.tool_calls if found is not None else ()
        return "".join([call.function.arguments or "" for call in calls if call.function])

    return feed


def _harmony() -> Any:
    """Return the Harmony encoding. Its vocabulary is a separate file; LiteLLM contains a copy."""
    from openai_harmony import HarmonyEncodingName, load_harmony_encoding

    found = find_spec("litellm")
    if "TIKTOKEN_ENCODINGS_BASE" not in os.environ and found is not None and found.origin is not None:
        for file in Path(found.origin).parent.glob("litellm_core_utils/tokenizers/fb374d*"):
            folder = Path(sys.prefix, "encodings")
            folder.mkdir(exist_ok=True)
            (folder / "o200k_base.tiktoken").write_bytes(file.read_bytes())
            os.environ["TIKTOKEN_ENCODINGS_BASE"] = str(folder)
    return load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)


def tokens(parts: tuple[str, str, str]) -> list[Any]:
    found: list[Any] = _harmony().encode("".join(parts), allowed_special="all")
    return found


def openai_harmony() -> Feed:
    from openai_harmony import Role, StreamableParser

    parser = StreamableParser(_harmony(), role=Role.ASSISTANT)

    def feed(token: int) -> str:
        parser.process(token)
        return parser.last_content_delta or "" if parser.current_recipient else ""

    return feed


@frozen
class CallReader:
    """A reader for calls, and the function that writes a call for it."""

    package: str
    opened: Callable[[], Feed]
    written: Callable[[dict[str, str]], tuple[str, str, str]] = tool_call
    cut: Callable[[tuple[str, str, str]], list[Any]] = characters
    values: bool = False
    """Whether the reader returns values instead of JSON."""


READERS: Mapping[str, CallReader] = {
    "streamtool": CallReader("streamtool", lambda: streamtool("tool_call")),
    "vLLM": CallReader("vllm", vllm),
    "SGLang": CallReader("sglang", lambda: sglang("hermes", "HermesDetector")),
    "jiter": CallReader("jiter", jiter, values=True),
    "partial-json-parser": CallReader("partial-json-parser", partial_json_parser, values=True),
    "streamtool, harmony": CallReader("streamtool", lambda: streamtool("harmony"), harmony),
    "openai-harmony": CallReader("openai-harmony", openai_harmony, harmony, tokens),
    "streamtool, pythonic": CallReader("streamtool", lambda: streamtool("pythonic"), pythonic),
    "SGLang, pythonic": CallReader("sglang", lambda: sglang("pythonic", "PythonicDetector"), pythonic),
}
_OURS = {harmony: "streamtool, harmony", pythonic: "streamtool, pythonic", tool_call: "streamtool"}


@frozen
class Read:
    """Result of one reader for one length."""

    seconds: float
    """CPU time for the whole call."""
    deltas: int
    first: float
    """Number of argument characters that had arrived when the first of them were returned."""
    right: bool


def read(reader: CallReader, size: int, limit: float) -> Read | None:
    """Read one call. Returns None if this takes longer than `limit` seconds."""
    given = arguments(size)
    parts = reader.written(given)
    deltas = reader.cut(parts)
    for delta in reader.cut(reader.written(arguments(0))):  # compile everything that is compiled on first use
        feed = reader.opened()
        feed(delta)
    feed = reader.opened()
    said: list[str] = []
    first = 0
    start = time.process_time()
    for place, delta in enumerate(deltas):
        new = feed(delta)
        if new:
            first = first or place + 1
            said.append(new)
        if not place % 64 and time.process_time() - start > limit:
            return None
    seconds = time.process_time() - start
    whole = "".join(said)
    right = whole == "".join(given.values()) if reader.values else _json(whole) == given
    seen = first * len("".join(parts)) / len(deltas) - len(parts[0])
    return Read(seconds, len(deltas), min(max(seen, 0.0), len(parts[1])), right)


WATCHED = ("streamtool, pythonic", "SGLang, pythonic")
"""Two readers for the same format; the second one waits for the end of a call."""


def timeline(name: str) -> dict[str, list[int]]:
    """Return, for each delta of a short call, how many characters the model has written and the reader has returned."""
    reader = READERS[name]
    deltas = reader.cut(reader.written({"path": "notes.md", "content": _WORDS * 6}))
    feed = reader.opened()
    found: dict[str, list[int]] = {"written": [], "known": []}
    written = known = 0
    for delta in deltas:
        written += len(delta)
        known += len(feed(delta))
        found["written"].append(written)
        found["known"].append(known)
    return found


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def compared(names: list[str], limit: float) -> dict[str, Any]:
    """Return, for each name, its results or the reason why they are missing."""
    found: dict[str, Any] = {}
    for name in names:
        reader = READERS[name]
        lengths: dict[str, Any] = {}
        try:
            for size in LENGTHS:
                runs = [read(reader, size, limit)]
                while len(runs) < ROUNDS and runs[0] is not None and runs[0].seconds < limit / ROUNDS:
                    runs.append(read(reader, size, limit))
                done = [run for run in runs if run is not None]
                if not done:
                    break
                best = min(done, key=lambda run: run.seconds)
                lengths[str(size)] = {
                    "seconds": best.seconds, "deltas": best.deltas, "first": round(best.first), "right": best.right,
                }  # fmt: skip
        except Exception as error:  # noqa: BLE001  other software may raise anything
            found[name] = {"missing": f"{type(error).__name__}: {error}"}
            continue
        found[name] = {"version": version(reader.package), "lengths": lengths}
        if name in WATCHED:
            found[name]["timeline"] = timeline(name)
    return found


def tables(found: Mapping[str, Any]) -> Iterator[Table]:
    """Yield the tables of the results."""
    columns = ("reader", *(f"{size} KB" for size in LENGTHS), "first", "right")
    rows: list[Row] = []
    for name, one in found.items():
        if "missing" in one:
            rows.append(Row((name, one["missing"].splitlines()[0][:60], *("" for _ in columns[2:]))))
            continue
        lengths = one["lengths"]
        ours = found.get(_OURS[READERS[name].written], {}).get("lengths", {})
        cells = [f"{name} {one['version']}"]
        for size in map(str, LENGTHS):
            cost = lengths[size]["seconds"] / lengths[size]["deltas"] * 1e6 if size in lengths else None
            times = f" ({lengths[size]['seconds'] / ours[size]['seconds']:.1f} ×)" if cost and size in ours else ""
            cells.append("over the limit" if cost is None else f"{cost:.1f}{times}")
        last = list(lengths.values())[-1] if lengths else None
        right = "yes" if all(one["right"] for one in lengths.values()) else "no"
        cells += [str(last["first"]), right] if last else ["", ""]
        rows.append(Row(tuple(cells)))
    yield Table("A call by its length: CPU µs per delta of four characters, and relative to streamtool", columns, rows)


def main() -> int:
    parser = argparse.ArgumentParser(description="Read a call in small deltas with streamtool and other software.")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = compared(given.names or list(READERS), given.seconds)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return sum(table.show() for table in tables(found))


if __name__ == "__main__":
    sys.exit(main())
