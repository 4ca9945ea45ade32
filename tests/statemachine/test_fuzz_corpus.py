"""Regression tests for fuzzing: every input of the corpus is replayed (see `tests/fuzz/fuzz_parser.py`)."""

import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "fuzz"
sys.path.append(str(FOLDER))

import fuzz_parser  # noqa: E402

CORPUS = sorted((FOLDER / "corpus").glob("*"))


@pytest.mark.parametrize("path", CORPUS, ids=[path.name for path in CORPUS])
def test_a_corpus_input_satisfies_the_invariants(path: Path) -> None:
    fuzz_parser.check(path.read_bytes())


def test_the_corpus_exists() -> None:
    assert CORPUS
