"""What fuzzing has found stays found: every input of the corpus is replayed (`tests/fuzz/fuzz_parser.py`)."""

import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "fuzz"
sys.path.append(str(FOLDER))

import fuzz_parser  # noqa: E402

CORPUS = sorted((FOLDER / "corpus").glob("*"))


@pytest.mark.parametrize("path", CORPUS, ids=[path.name for path in CORPUS])
def test_an_input_of_the_corpus(path: Path) -> None:
    fuzz_parser.check(path.read_bytes())


def test_the_corpus_is_there() -> None:
    assert CORPUS
