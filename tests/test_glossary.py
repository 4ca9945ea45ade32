"""The overviews for newcomers are correct: the rooms in `docs/design.md` with their tests, and the modules in the
glossary.
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOM = re.compile(r"^\| (?P<rooms>`[^|]*`) \| [^|]+ \| (?P<tests>`tests/[^|]+) \|$", re.MULTILINE)
WORD = re.compile(r"^\| (?P<word>[^|`]+) \| (?P<meaning>[^|]+) \| `(?P<module>[\w/]+(?:\.py)?)` \|$", re.MULTILINE)


def rooms() -> list[re.Match[str]]:
    return list(ROOM.finditer((ROOT / "docs" / "design.md").read_text(encoding="utf-8")))


def test_the_design_has_a_row_for_each_room():
    named = [name for row in rooms() for name in re.findall(r"`([\w/]+)`", row["rooms"])]
    folders = {
        path.parent.name if path.name == "__init__.py" else path.stem
        for package in ("statemachine", "streamtool")
        for path in (ROOT / package).glob("*")
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert folders - {"statemachine", "__init__"} <= {*named, "streamtool"}


def test_the_tests_of_each_room_exist():
    for row in rooms():
        for pattern in re.findall(r"`([^`]+)`", row["tests"]):
            assert list(ROOT.glob(pattern)), f"{row['rooms']}: {pattern}"


def glossary() -> list[re.Match[str]]:
    return list(WORD.finditer((ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")))


def test_every_row_of_the_glossary_has_a_word_a_sentence_and_a_module():
    rows = [line for line in (ROOT / "docs" / "glossary.md").read_text("utf-8").splitlines() if line.startswith("|")]
    assert len(glossary()) == len(rows) - 2, "a row is malformed"
    assert all(row["meaning"].endswith(".") for row in glossary())


def test_words_of_the_glossary_are_sorted_and_have_one_meaning():
    words = [row["word"].lower() for row in glossary()]
    assert words == sorted(set(words))


def test_modules_named_in_the_glossary_exist():
    assert [row["word"] for row in glossary() if not (ROOT / row["module"]).exists()] == []


RETIRED = {
    "mend": "repair",
    "mended": "repaired",
    "contract": "tool prompt",
    "shelf": "client store",
    "memories": "store entries",
    "shell": "driver",
    "nobody": "anonymous",
}
"""Words that names no longer use → the words of the glossary."""


def identifiers() -> dict[str, set[str]]:
    """Word in a name → the modules whose names contain it."""
    found: dict[str, set[str]] = {}
    for package in ("statemachine", "streamtool"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                match node:
                    case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                        pass
                    case ast.arg(arg=name) | ast.Name(id=name) | ast.Attribute(attr=name):
                        pass
                    case _:
                        continue
                for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name):
                    found.setdefault(word.lower(), set()).add(str(path.relative_to(ROOT)))
    return found


def test_each_word_occurs_in_its_module():
    """In a name or in prose; words of several parts with any of their parts."""
    missing = []
    for row in glossary():
        path = ROOT / row["module"]
        files = [path] if path.is_file() else sorted(path.rglob("*.py"))
        text = " ".join(file.read_text(encoding="utf-8") for file in files).lower() + str(path).lower()
        words = re.findall(r"[a-z]{3,}", re.sub(r"\(.*\)", "", row["word"].lower()))
        if not any(word.rstrip("s")[:6] in text for word in words):
            missing.append(row["word"])
    assert not missing


def test_no_name_uses_a_retired_word():
    found = identifiers()
    used = {word: sorted(found[word]) for word in RETIRED if word in found}
    allowed = {"shell": "responses"}  # a tool of the Responses API
    assert {
        word: where for word, where in used.items() if not all(allowed.get(word, "-") in one for one in where)
    } == {}
