"""Coverage-guided fuzzing of the parser with every format.

`python tests/fuzz/fuzz_parser.py CORPUS -max_total_time=1800`. Needs `pip install atheris`.

The first few bytes of an input choose the options; the rest are the model's text, in which bytes below 0x80 are
characters and the others are markers and fragments (`strategies.MARKERS`), so that the fuzzer does not have to discover
the spelling of a marker. `check` contains the invariants. An input that violates one is a bug; it is added to
`tests/fuzz/corpus`, which `tests/statemachine/test_fuzz_corpus.py` replays.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

from support.statemachine_fold import fold  # noqa: E402  (needs the paths above)
from support.strategies import FRAGMENTS, MARKERS, SOUP_TOOLS  # noqa: E402

from statemachine import FORMATS, Parser  # noqa: E402
from statemachine.machine.states import violations  # noqa: E402

WORDS = [*MARKERS, *(text for text in FRAGMENTS if text.isprintable() or len(text) > 1), *SOUP_TOOLS]
NAMES = tuple(FORMATS)


def case_of(data: bytes) -> tuple[str, dict[str, Any], str | None, int]:
    """Decode an input into the text, the options, the finish reason and the piece size."""
    flags, form, size = (*data[:3], 0, 0, 0)[:3]
    chosen = (None, NAMES, (NAMES[form % len(NAMES)],))[flags % 3]
    options: dict[str, Any] = {
        "formats": chosen,
        "unknown": "discard" if flags & 4 else "text",
        "in_fences": "calls" if flags & 8 else "text",
        "calls_in_reasoning": bool(flags & 16),
        "names": "edit" if flags & 64 else "spelling",
    }
    return "".join(text_of(data[3:])), options, "length" if flags & 32 else None, size % 7


def text_of(data: bytes) -> Iterator[str]:
    """Return the text that the bytes encode."""
    left = iter(data)
    for byte in left:
        yield chr(byte) if byte < 0x80 else WORDS[((byte & 0x7F) << 8 | next(left, 0)) % len(WORDS)]


def run(text: str, options: dict[str, Any], reason: str | None, size: int, *, ledger: bool) -> tuple[list[Any], Parser]:
    """Return the events of a text in pieces of a size (0: whole), and the parser."""
    parser = Parser(SOUP_TOOLS, ledger=ledger, **options)
    step = size or len(text) or 1
    events = [event for at in range(0, len(text), step) for event in parser.feed(text[at : at + step])]
    return events + parser.close(reason), parser


def check(data: bytes) -> None:
    """Check the invariants for a text.

    Raises AssertionError if an event is illegal, the outcome depends on the pieces, or text is lost.
    """
    text, options, reason, size = case_of(data)
    whole, _ = run(text, options, reason, 0, ledger=False)
    assert violations(whole) == []
    pieces, parser = run(text, options, reason, size + 1, ledger=True)
    assert violations(pieces) == []
    assert fold(pieces) == fold(whole)
    end = 0
    for span in parser.ledger:
        assert span.start == end < span.end
        end = span.end
    assert end == len(text)


def main() -> None:
    """Run the fuzzer with libFuzzer's arguments."""
    import atheris

    atheris.instrument_all()
    atheris.Setup(sys.argv, check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
