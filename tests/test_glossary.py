"""A newcomer can trust the maps: `docs/design.md` names every module, and the glossary names modules that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = re.compile(r"^\| `((?:statemachine|streamtool)/[\w/]*)` \| (.*) \|$", re.MULTILINE)
WORD = re.compile(r"^\| (?P<word>[^|`]+) \| (?P<meaning>[^|]+) \| `(?P<module>[\w/]+(?:\.py)?)` \|$", re.MULTILINE)
ENTRIES = ("__init__", "__main__")
"""Modules that only open or start their package."""


def named() -> dict[str, list[str]]:
    """Folder -> the modules that the tables of the design name in it."""
    design = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    return {folder: re.findall(r"`(\w+)`", modules) for folder, modules in FOLDER.findall(design)}


def existing() -> dict[str, list[str]]:
    """Folder -> its modules in the tree."""
    found: dict[str, list[str]] = {}
    for package in ("statemachine", "streamtool"):
        for path in (ROOT / package).rglob("*.py"):
            if path.stem not in ENTRIES:
                found.setdefault(f"{path.parent.relative_to(ROOT)}/", []).append(path.stem)
    return found


def test_the_design_has_a_row_for_each_folder():
    assert sorted(named()) == sorted(existing())


def test_the_design_names_each_module_once():
    for folder, modules in existing().items():
        assert sorted(named().get(folder, [])) == sorted(modules), folder


def glossary() -> list[re.Match[str]]:
    return list(WORD.finditer((ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")))


def test_every_row_of_the_glossary_is_a_word_a_sentence_and_a_module():
    rows = [line for line in (ROOT / "docs" / "glossary.md").read_text("utf-8").splitlines() if line.startswith("|")]
    assert len(glossary()) == len(rows) - 2, "a row has another shape"
    assert all(row["meaning"].endswith(".") for row in glossary())


def test_words_of_the_glossary_are_in_order_and_have_one_meaning():
    words = [row["word"].lower() for row in glossary()]
    assert words == sorted(set(words))


def test_modules_that_the_glossary_names_exist():
    assert [row["word"] for row in glossary() if not (ROOT / row["module"]).exists()] == []
