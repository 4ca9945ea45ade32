"""The corpus of denials, announcements and answers that are neither."""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

CORPUS = [
    json.loads(line) for line in (ROOT / "tests" / "refusals" / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
]

NEGATIVES = [case["text"] for case in CORPUS if case["class"] is None]
