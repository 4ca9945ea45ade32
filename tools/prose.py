"""Find phrases that read like translations in comments, docstrings, messages, help texts and docs.

    python -m tools.prose           print every hit
    python -m tools.prose PATH…     print the hits in some files or folders

`tests/test_prose.py` requires that there are no hits. A phrase that is right in its context belongs in `ALLOWED`, with
enough of the surrounding words to make it specific.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("streamtool", "statemachine", "tests", "benchmarks", "conformance", "tools", "deploy")
PAGES = ("README.md", "CHANGELOG.md", "docs/**/*.md", "benchmarks/*.md", "conformance/*.md", "deploy/**/*.md")
SKIPPED = ("tools/prose.py", "tests/test_prose.py", "tests/formats/", "tests/fuzz/", "tests/node/node_modules/")
"""Files that quote denied phrases, and files that contain text written by models."""
STRINGS_FOR_MODELS = (
    "tests/",
    "benchmarks/",
    "conformance/",
    "streamtool/sample/",
    "streamtool/prompting/",
    "streamtool/bench.py",
    "tools/pictures.py",
    "streamtool/agent/one_object.py",
    "streamtool/agent/mcp_servers.py",
    "streamtool/cli/demo.py",
    "streamtool/cli/terminal/asking.py",
    "streamtool/policy/failures.py",
    "streamtool/policy/detectors.py",
    "streamtool/schemas/errors.py",
    "streamtool/schemas/answer_form.py",
    "streamtool/protocols/messages/content.py",
    "streamtool/protocols/messages/toolsets.py",
    "streamtool/protocols/messages/typed_tools.py",
    "streamtool/protocols/responses/compaction.py",
    "streamtool/protocols/responses/typed_tools.py",
)
"""Files whose strings are written or read by models; only their comments and docstrings are checked."""

DENIED = {
    "no or none as a predicate": (
        r"\b(?:is|are|was|were|be|been) (?-i:no|none)\b"  # Python's None is fine
        r"(?! (?:longer|more|less|different|need|better|worse|faster|slower|larger|later|earlier|way)\b)"
    ),
    "nobody, somebody, whoever": r"\b(?:nobody|somebody|whoever|whomever|whosoever)\b",
    "anew": r"\banew\b",
    "mend for repair": r"\bmend(?:s|ed|ing)?\b",
    "stand as a copula": r"\b(?:stands?|stood|standing)\b(?! (?:for|in for|out)\b)",
    "lie as a copula": r"\b(?:lies|lay|lain|lying)\b",
    "come as a copula": (
        r"\b(?:has|have|had|is|are|was|were) come\b|\b(?:what|that|as (?:it|they)) (?:comes?|came)\b"
        r"|\bcomes? (?:behind|before|after|first|last|too late|in one piece|of it)\b"
    ),
    "behind for after": r"\bbehind\b",
    "a sentence that begins with What": r"(?:^|[.:;!?] +)What [a-z](?![^.?!]*\?)",
    "a relative clause without a head": (
        r"\b(?:of|for|to|by|with|in|from|on|than|and|or|but|says|tells|knows|holds|are|is) what "
        r"(?:is|was|are|were|has|had|comes|came|may|must|can|follows|remains|waits|it is|they are|somebody|no)\b"
    ),
    "say or tell of a thing": (
        r"\b(?:says?|said|tells?|told) (?:so|nothing|otherwise|what|whether|which|how|who|where|when|by)\b"
        r"|\b(?:is|are|was|were|be|been) (?:told|said)\b"
    ),
    "a preposition before a relative": (
        r"\b(?:with|by|of|under|for|to|at|behind|after|through|out of) (?:which|whom)\b"
    ),
    "beside for next to": r"\bbesides?\b",
    "white space for whitespace": r"\bwhite space\b",
    "as it came": r"\bas (?:it|they) (?:stands?|came|come|lies?|went|goes|go)\b",
    "go as a copula": (r"\b(?:goes|went|gone) (?:out|on|in|away|back|along|to|into|through)\b|\b(?:is|are) gone\b"),
    "over for finished": r"\b(?:is|are|was|were) over\b(?! \d)",
    "a private verb": r"\b(?:settles?|settled|settling|spoil(?:s|t|ed)?)\b",
    "of its own": r"\bof (?:its|their|one's) own\b",
    "look past": r"\blook(?:s|ed|ing)? (?:past|on)\b",
    "in the end": r"\bin the end\b|\bat an end\b",
    "all the same": r"\ball the same\b|\bthe like\b|\band the rest\b",
    "but for": r"\bbut for\b|\bor else\b",
    "hand on": r"\bhand(?:s|ed|ing)? on\b",
}
"""Kind of phrase → regular expression, case-insensitive."""

ALLOWED = (
    "as far as possible",
    "behind a proxy",
    "behind a reverse proxy",
    "behind nginx",
    "behind one address",
    "`behind text`",  # a reason in logs and metrics
    "--beside",
    "event comes last",
    "stand-alone",
    "stand-in",
    "standing order",
    "told apart",
    "your client executes, and with which arguments",
)
"""Phrases that match but are right."""

_KINDS = tuple(DENIED)
_DENIED = re.compile("|".join(f"(?P<k{i}>{p})" for i, p in enumerate(DENIED.values())), re.IGNORECASE | re.MULTILINE)
_ALLOWED = re.compile("|".join(map(re.escape, ALLOWED)), re.IGNORECASE)
_SENTENCE = re.compile(r"[A-Za-z'’,:;]+(?: [A-Za-z0-9'’`,:;()–-]+){3}")
_DIRECTIVE = re.compile(r"#\s*(?:type:|noqa|fmt:|!)")
_COMMENT_OR_STRING = re.compile(
    r"""(?P<comment>\#[^\n]*)|(?P<quotes>\"{3}|'{3}|"|')(?:\\.|.)*?(?P=quotes)""", re.DOTALL
)  # reads a file ten times faster than `tokenize`
_BLOCK = re.compile(r"^( *)(```+|~~~+).*?^\1\2\s*$", re.MULTILINE | re.DOTALL)
_NEW_PARAGRAPH = re.compile(r"\s*(?:[-*|#>]|\d+\.) ?")


class Hit(NamedTuple):
    """A denied phrase and where it occurs."""

    path: str
    line: int
    kind: str
    context: str


def hits_in(text: str) -> Iterator[tuple[str, str]]:
    """Yield (kind, context) for each denied phrase in a paragraph."""
    flat = re.sub(r"(?<!\n)[ \t]*\n[ \t]*(?!\n)", " ", text)
    for found in _DENIED.finditer(flat):
        allowed = (one.span() for one in _ALLOWED.finditer(flat))
        if not any(start < found.end() and found.start() < end for start, end in allowed):
            context = flat[max(0, found.start() - 50) : found.end() + 40].replace("\n", " ")
            yield _KINDS[int(str(found.lastgroup)[1:])], context


def hits_of(path: Path) -> Iterator[Hit]:
    """Yield the denied phrases in a file."""
    text, name = path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()
    if path.suffix == ".md":
        prose = prose_of_page(text)
    else:
        prose = prose_of_code(text, strings=not name.startswith(STRINGS_FOR_MODELS))
    for line, paragraph in prose:
        for kind, context in hits_in(paragraph):
            yield Hit(name, line, kind, context)


def prose_of_code(source: str, *, strings: bool = True) -> Iterator[tuple[int, str]]:
    """Yield (line, text) for each comment and docstring and, with `strings`, for each string that looks like a
    sentence.
    """
    yield from _comments(source)
    read: set[int] = set()
    for node in (ast.walk if strings else _blocks)(ast.parse(source)):
        for value in _docstrings(node):
            read.add(id(value))
            yield value.lineno, str(value.value)
        if not strings:
            continue
        text = ""
        if isinstance(node, ast.JoinedStr):
            read.update(map(id, node.values))
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in read:
            text = node.value
        if isinstance(node, ast.expr) and _SENTENCE.search(text):
            yield node.lineno, text


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield each block of comment lines as one string."""
    comment: list[str] = []
    began, read, ended = 1, 0, 0
    for token in _COMMENT_OR_STRING.finditer(source):
        text = token["comment"]
        if text is None or _DIRECTIVE.match(text):
            continue
        if comment and source[ended : token.start()].strip():
            yield began, " ".join(comment)
            comment = []
        if not comment:
            began += source.count("\n", read, token.start())
            read = token.start()
        comment.append(text.lstrip("# "))
        ended = token.end()
        if source[source.rfind("\n", 0, token.start()) + 1 : token.start()].strip():  # after code on its line
            yield began, " ".join(comment)
            comment = []
    if comment:
        yield began, " ".join(comment)


def _blocks(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the node and the statements in it that contain others, at any depth."""
    yield node
    for statements in (getattr(node, name, ()) for name in ("body", "orelse", "finalbody", "handlers", "cases")):
        for statement in statements if isinstance(statements, list) else ():
            if hasattr(statement, "body"):
                yield from _blocks(statement)


def _docstrings(node: ast.AST) -> Iterator[ast.Constant]:
    """Yield the strings that are statements of a block: docstrings, and those below a field."""
    body = getattr(node, "body", None)
    for statement in body if isinstance(body, list) else ():
        value = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value


def prose_of_page(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) for each paragraph, list item or table row outside code blocks."""
    text = _BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text)
    paragraph: list[str] = []
    began = 1
    for number, line in enumerate([*text.split("\n"), ""], 1):
        if paragraph and (not line.strip() or _NEW_PARAGRAPH.match(line)):
            yield began, " ".join(paragraph)
            paragraph = []
        if line.strip():
            began = began if paragraph else number
            paragraph.append(re.sub(r"`[^`]*`", "`x`", line.strip()))


def _python_files(folder: Path) -> list[Path]:
    """Return the Python files in a folder, apart from those in hidden folders, such as installed environments."""
    found = sorted(folder.rglob("*.py"))
    return [file for file in found if not any(part.startswith(".") for part in file.relative_to(folder).parts)]


def files(paths: Iterable[str] = ()) -> Iterator[Path]:
    """Yield the files that contain prose: the given paths, or all files."""
    given = [Path(path).resolve() for path in paths]
    folders = given or [ROOT / folder for folder in FOLDERS]
    found = [inner for one in folders for inner in ([one] if one.is_file() else _python_files(one))]
    found += [page for one in given if one.is_dir() for page in sorted(one.rglob("*.md"))]
    found += [] if given else [page for pattern in PAGES for page in sorted(ROOT.glob(pattern))]
    for path in found:
        if not path.relative_to(ROOT).as_posix().startswith(SKIPPED):
            yield path


def main(paths: list[str]) -> int:
    """Print the hits, and the number of hits of each kind. Return 1 if there are any."""
    found = [hit for path in files(paths) for hit in hits_of(path)]
    for hit in found:
        print(f"{hit.path}:{hit.line}: {hit.kind}: …{hit.context}…")
    for kind in _KINDS:
        count = sum(hit.kind == kind for hit in found)
        if count:
            print(f"{count:6}  {kind}")
    print(f"{len(found):6}  in all")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
