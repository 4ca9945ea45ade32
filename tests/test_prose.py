"""The prose of the project reads as native English: no phrase of the deny-list in `tools/prose.py`."""

import pytest

from tools import prose

TRANSLATED = {
    "is no TOML": "is not valid TOML",
    "What the stages of one choice share.": "State shared by a choice's filters.",
    "The correction stands behind the last message.": "The correction follows the last message.",
    "Nobody is there any more.": "The client has disconnected.",
    "The error with which it has to end early.": "Error to end the request with.",
    "The rest is parsed anew.": "The rest is parsed again.",
    "The stack of what is open.": "The stack of open frames.",
    "The JSON was mended.": "The JSON was repaired.",
    "Characters of white space that are looked past.": "Maximum run of whitespace to skip.",
    "The reply is over.": "The reply has ended.",
    "Whoever shows the same key is one client.": "Clients are identified by API key.",
    "The upstream says whether it is told.": "The upstream reports it.",
    "The body is passed as it came.": "The body is passed unchanged.",
    "It goes out at the end.": "It is sent last.",
    "A thread of its own reads it.": "A separate thread reads it.",
}


@pytest.mark.parametrize("translated", TRANSLATED)
def test_a_translated_phrase_is_found_and_its_rewrite_is_not(translated: str):
    assert list(prose.hits_in(translated))
    assert not list(prose.hits_in(TRANSLATED[translated]))


@pytest.mark.parametrize(
    "allowed", ["as far as possible", "a stand-alone parser", "What does the proxy do?", "It is no longer open."]
)
def test_a_real_use_is_allowed(allowed: str):
    assert not list(prose.hits_in(allowed))


def test_comments_docstrings_and_messages_are_read():
    code = 'def f():\n    """What is open."""\n    # nobody reads this\n    raise ValueError(f"{f} is no valid JSON today")\n'
    assert {line for line, _ in prose.prose_of_code(code)} == {2, 3, 4}
    assert {line for line, _ in prose.prose_of_code(code, strings=False)} == {2, 3}


def test_pages_are_read_without_their_code():
    page = "# Title\n\nA line\nand another.\n\n```sh\nnobody\n```\n\n- `nobody` is code\n"
    assert [text for _, text in prose.prose_of_page(page)] == ["# Title", "A line and another.", "- `x` is code"]


def test_no_prose_of_the_project_reads_as_translated():
    found = [hit for path in prose.files() for hit in prose.hits_of(path)]
    assert not found, "\n" + "\n".join(f"{hit.path}:{hit.line}: {hit.kind}: …{hit.context}…" for hit in found)
