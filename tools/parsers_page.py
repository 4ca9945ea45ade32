"""Generate `docs/reference/parsers.md`: parsers from engines and libraries compared with ours, from measurements."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tools.formats_page import item

FIGURES: Final = Path(__file__).resolve().parent.parent / "conformance" / "parsers.json"
OURS: Final = "ours"
ENGINES: Final = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "mlx": "mlx-lm",
    "llama_cpp": "llama.cpp",
    "harmony": "openai-harmony",
    "ai_sdk": "@ai-sdk-tool/parser",
}
PAGE: Final = """\
<!-- made from conformance/parsers.json by `python tests/test_docs.py`; a test keeps it current -->

# Parsers of engines, compared

The parsers of engines and libraries, each on its own formats, compared with streamtool's. All run unmodified:
{versions}.
Each receives deltas of four characters, as its server would send them; a delta never splits a special token.
streamtool's parser recognizes only the format in the row.

- *replies*: for {replies} replies written by `statemachine.write`, the number with all calls correct / with correct
  text, apart from whitespace / with the same result at every delta size (1, 2, 3, 5, 7 and 16 characters, special
  tokens whole).
- *habits*: of the format's [conformance cases](../../conformance/README.md), the number with all calls correct / the
  same for streamtool / all cases.
- *first*: the number of deltas from the beginning of a 500-character call's arguments until the first argument
  character is known; *end*: only at the end of the call.
- *µs*: CPU time per delta in a 4 KB call (CPython 3.11, one machine, one run).

The conformance cases include our own decisions where engines differ, so they favor our parser. On the replies,
streamtool reaches {ours} in every format, with *first* {first} and {micros} µs.

{table}

The following parsers read no reply correctly and are omitted:

{other}

Some of them expect a different spelling from the one that `write` produces (no text before the call, another marker in
the block, an id); others need the model's own tokenizer. The llama.cpp templates of Seed and GigaChat fail on
parameters that have no type or several types; one of our tools has such parameters.

- **vLLM, SGLang, mlx-lm**: their separate reasoning parsers are not compared. mlx-lm's parsers receive whole calls.
- **llama.cpp** builds its parser from the tools and the chat template that the row names. Its server constrains calls
  with the same grammar, so most replies that do not match are errors. It parses the entire reply again for every delta,
  so its time per delta grows with the reply.
- **openai-harmony** reads tokens. Its times exclude tokenizing.
- **@ai-sdk-tool/parser** is middleware for the AI SDK, which has no call parser, and is measured inside Node.
  `morphXml` keeps the newlines that `write` puts around a value. `yamlXml` is missing because we have no YAML format.
- **Ollama** is missing: its parser is part of its server and not available as a package.

The measurements need no GPU; [conformance](../../conformance/README.md#parsers-of-engines) lists the commands.
"""


def page() -> str:
    """Return the page."""
    found: Mapping[str, Any] = json.loads(FIGURES.read_text(encoding="utf-8"))
    versions = ", ".join(f"{engine} {rows(found, name)[0]['version']}" for name, engine in ENGINES.items())
    none = {
        engine: [f"`{row['parser']}`" for row in rows(found, name) if not row["calls"]]
        for name, engine in ENGINES.items()
    }
    head = ("| format | parser | replies | habits | first | µs |", "|---|---|---|---|---|---|")
    ours = {row["format"]: row for row in rows(found, OURS)}
    forms = sorted({row["format"] for name in ENGINES for row in rows(found, name) if row["calls"]})
    compared = [ours[form] for form in forms]
    micros = [row["micros"] for row in compared]
    return PAGE.format(
        versions=versions,
        replies=compared[0]["replies"],
        ours="/".join(str(min(row[column] for row in compared)) for column in ("calls", "text", "splits")),
        first=max(row["first"] for row in compared),
        micros=f"{min(micros):.1f} to {max(micros):.1f}",
        table="\n".join([*head, *lines(found, forms, ours)]),
        other="\n".join(item(f"{engine}: {', '.join(names)}") for engine, names in none.items() if names),
    )


def rows(found: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """Return the measurements for an engine's parsers."""
    listed: list[Mapping[str, Any]] = found.get(name, {"rows": []})["rows"]
    return listed


def lines(found: Mapping[str, Any], forms: list[str], ours: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the rows of the table, grouped by format."""
    for form in forms:
        for name, engine in ENGINES.items():
            for row in rows(found, name):
                if row["format"] == form and row["calls"]:
                    yield line(row, engine, ours[form])


def line(row: Mapping[str, Any], engine: str, ours: Mapping[str, Any]) -> str:
    """Return the row for one parser."""
    first = "end" if row["first"] is None else row["first"]
    micros = "" if row["micros"] is None else f"{row['micros']:.1f}"
    return (
        f"| `{row['format']}` | {engine} `{row['parser']}` | {row['calls']}/{row['text']}/{row['splits']} "
        f"| {row['habits']}/{ours['habits']}/{ours['cases']} | {first} | {micros} |"
    )
