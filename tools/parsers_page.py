"""`docs/parsers.md`: the parsers of others beside ours, out of `conformance/parsers.json`."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

FIGURES: Final = Path(__file__).resolve().parent.parent / "conformance" / "parsers.json"
ENGINES: Final = {
    "ours": "**streamtool**",
    "vllm": "vLLM",
    "sglang": "SGLang",
    "mlx": "mlx-lm",
    "llama_cpp": "llama.cpp",
    "harmony": "openai-harmony",
    "ai_sdk": "@ai-sdk-tool/parser",
}

COLUMNS: Final = {
    "calls, text": (
        "of {replies} replies as the format has them, written by `statemachine.write`: how many have every call right, "
        "and how many their text (white space apart)"
    ),
    "splits": (
        "how many of these come to the same however they are cut: 1, 2, 3, 5, 7, 16 characters, special tokens whole"
    ),
    "habits": (
        "of the [conformance cases](../conformance/README.md) of the format: how many have every call right. They hold "
        "what models were seen to write, mistakes included, and what was decided here where engines differ, so they "
        "favour the parser that was made with them"
    ),
    "first": (
        "deltas from the beginning of the arguments of a call of 500 characters until the first of them is known; "
        "*end*: not before the call is over"
    ),
    "µs": "per delta, in a call of 4 KB (CPU, CPython 3.11, one machine, one run)",
}
PAGE: Final = """\
<!-- made from conformance/parsers.json by `python tests/test_docs.py`; a test keeps it current -->

# Parsers side by side

How the parsers of engines and libraries read the formats that they are made for, beside ours. Every parser is the
original: {versions}.
Each is fed as its server feeds it, in deltas of four characters that never cut a special token. Ours listens for the
one format in each row.

{columns}

{table}

Left out, because they read none of the replies: {other}.

Some of these expect another spelling than the one that `write` gives (no text before the call, another marker inside of
the block, an id), others the model's own tokenizer. Two templates fail in llama.cpp where a parameter has no type, or
several, as one of our tools has: those of Seed and GigaChat.

- **vLLM, SGLang, mlx-lm** have other parsers for reasoning, which are not compared. mlx-lm's parsers get each call when
  it is whole.
- **llama.cpp** makes its parser out of the model's chat template and the tools; a row names the template. Its server
  holds the model to the same grammar once a call has begun, so the parser mends few habits: most replies that do not
  fit are errors. Every delta is read together with all that came before, so the µs grow with the reply.
- **openai-harmony** reads tokens. Making them is not in the µs.
- **@ai-sdk-tool/parser** is middleware for the AI SDK, which has no parser of calls itself. It is measured inside Node.
  `morphXml` keeps the line ends that `write` puts around a value. `yamlXml` is not here: no format of ours writes
  arguments as YAML.
- **Ollama** is missing. Its parser is a part of its server, and no package of Python or Node offers it.

The engines need no kernels and no GPU for this, only what their modules import. They may live in several environments:
the file keeps the rows of all that is not measured. `conformance/runners/llama_cpp.py` says what llama.cpp needs;
litellm brings the vocabulary of openai-harmony.

<!-- not run: it needs engines -->
```sh
pip install --no-deps vllm sglang mlx-lm    # and torch, transformers, and what they ask for when they are imported
pip install xllamacpp openai-harmony litellm
npm ci --prefix conformance/runners
export LLAMA_CPP=…/thirdparty/llama.cpp
python -m conformance.table vllm sglang mlx llama_cpp harmony ai_sdk ours --json conformance/parsers.json
```
"""


def page() -> str:
    """The page."""
    found: Mapping[str, Any] = json.loads(FIGURES.read_text(encoding="utf-8"))
    versions = ", ".join(f"{ENGINES[name]} {rows(found, name)[0]['version']}" for name in ENGINES if name != "ours")
    none = [
        f"`{row['parser']}` of {ENGINES[name]}" for name in ENGINES for row in rows(found, name) if not row["calls"]
    ]
    head = ("| format | parser | calls | text | splits | habits | first | µs |", "|---|---|---|---|---|---|---|---|")
    table = "\n".join([*head, *lines(found)])
    replies = found["ours"]["rows"][0]["replies"]
    told = "\n".join(f"| {name} | {what} |" for name, what in COLUMNS.items()).format(replies=replies)
    columns = f"| column | |\n|---|---|\n{told}"
    return PAGE.format(versions=versions, table=table, other=wrapped(none), columns=columns)


def rows(found: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """What was measured of an engine's parsers."""
    listed: list[Mapping[str, Any]] = found.get(name, {"rows": []})["rows"]
    return listed


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The table, format by format, ours first."""
    forms = sorted({row["format"] for name in ENGINES if name != "ours" for row in rows(found, name) if row["calls"]})
    for form in forms:
        for name, engine in ENGINES.items():
            for row in rows(found, name):
                if row["format"] == form and row["calls"]:
                    yield line(row, engine)


def line(row: Mapping[str, Any], engine: str) -> str:
    """One parser."""
    first = "end" if row["first"] is None else row["first"]
    micros = "" if row["micros"] is None else f"{row['micros']:.1f}"
    parser = engine if engine == ENGINES["ours"] else f"{engine} `{row['parser']}`"
    return (
        f"| `{row['format']}` | {parser} | {row['calls']} | {row['text']} | {row['splits']} "
        f"| {row['habits']} of {row['cases']} | {first} | {micros} |"
    )


def wrapped(names: list[str]) -> str:
    """Names with commas between, on lines that keep to the width."""
    text, width = "", 50
    for name in names:
        part = name if not text else f", {name}"
        if width + len(part) > 116:
            part, width = f",\n{name}", 0
        text += part
        width += len(part)
    return text
