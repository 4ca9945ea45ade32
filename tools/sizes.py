"""Report large and duplicated code: `python -m tools.sizes [ROOT]`.

Lists classes with more than 12 attributes, functions with more than 60 lines, modules with more than 400 lines, class
names used for two different classes, and identical blocks of ten lines. Equal names in the protocol packages are
intentional and are not listed, and neither are private names. Generated modules are skipped.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ATTRIBUTES, FUNCTION, MODULE, BLOCK = 12, 60, 400, 10
GENERATED = "# Generated from "


def modules(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield each handwritten module with its source."""
    for package in ("statemachine", "streamtool"):
        for path in sorted((root / package).rglob("*.py")):
            if not (source := path.read_text("utf-8")).startswith(GENERATED):
                yield path.relative_to(root), source


def attributes(node: ast.ClassDef) -> set[str]:
    """Return the attributes of a class's instances."""
    found = {
        each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and isinstance(each.value, ast.Name):
            found |= {each.attr} if each.value.id == "self" else set()
    return found


def lines_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of code, without comments, imports and lines that contain only brackets."""
    imports = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for line in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    for number, line in enumerate(source.splitlines(), 1):
        text = line.strip()
        if number not in imports and len(text.strip("()[]{},:")) > 1 and not text.startswith("#"):
            yield number, text


def blocks(root: Path) -> list[str]:
    """Return the locations of blocks of at least ten lines that occur more than once; overlapping blocks count once."""
    places: dict[tuple[str, ...], list[tuple[Path, int]]] = defaultdict(list)
    for path, source in modules(root):
        lines = list(lines_of(source))
        for at in range(len(lines) - BLOCK + 1):
            places[tuple(text for _, text in lines[at : at + BLOCK])].append((path, lines[at][0]))
    found: dict[tuple[Path, ...], str] = {}
    for each in places.values():
        if len(each) > 1:
            found.setdefault(tuple(path for path, _ in each), " ~ ".join(f"{path}:{line}" for path, line in each))
    return sorted(found.values())


def report(root: Path) -> dict[str, list[str]]:
    """Return the findings of each kind with their locations."""
    found: dict[str, list[str]] = {
        f"classes over {ATTRIBUTES} attributes": [],
        f"functions over {FUNCTION} lines": [],
        f"modules over {MODULE} lines": [],
    }
    classes, functions, large = found.values()
    names: dict[str, list[Path]] = defaultdict(list)
    for path, source in modules(root):
        if (length := source.count("\n")) > MODULE:
            large.append(f"{path}: {length}")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                if len(attributes(node)) > ATTRIBUTES:
                    classes.append(f"{path} {node.name}: {len(attributes(node))}")
                if not node.name.startswith("_") and "protocols" not in path.parts:
                    names[node.name].append(path)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                if length > FUNCTION:
                    functions.append(f"{path} {node.name}: {length}")
    found["class names with two meanings"] = [
        f"{name}: {', '.join(map(str, paths))}" for name, paths in sorted(names.items()) if len(paths) > 1
    ]
    found[f"equal blocks of {BLOCK} lines"] = blocks(root)
    return found


if __name__ == "__main__":
    for kind, rows in report(Path(sys.argv[1] if len(sys.argv) > 1 else ".")).items():
        print(f"{kind}: {len(rows)}")
        for row in rows:
            print(f"  {row}")
