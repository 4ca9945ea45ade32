"""Excerpts: any text comes back whole, and a text that is part of the source is not stored again."""

import random
import sys
import tracemalloc

from streamtool.core.excerpt import Excerpt

ALPHABETS = ("a", "ab ", 'abc"\\{}:, ', "aé→😀\ud83d\ude00")


def test_any_text_comes_back_whole_however_it_is_related_to_the_source():
    rng = random.Random(1)
    for _ in range(400):
        letters, source, given = rng.choice(ALPHABETS), bytearray(), ""
        excerpt = Excerpt(source if rng.random() < 0.9 else None)
        kept = rng.random()
        for _ in range(rng.randrange(80)):
            text = "".join(rng.choices(letters, k=rng.randrange(6)))
            source += text.encode("utf-8", "surrogatepass")
            # most pieces are parts of the source; some are left out, come later, or differ
            if rng.random() < kept:
                piece = text if rng.random() < 0.9 else text[1:] + "x"
                given += piece
                excerpt.add(piece)
            if rng.random() < 0.1:
                excerpt.join()
        assert str(excerpt) == given


def test_an_escaped_text_comes_back_whole():
    source, given = bytearray(), ""
    excerpt = Excerpt(source)
    for number in range(500):
        text = f'line "{number}"\n' if number % 7 else "é" * number
        source += text.encode()
        given += (piece := text.replace("\n", "\\n").replace('"', '\\"'))
        excerpt.add(piece)
    assert str(excerpt) == given


def test_a_part_of_the_source_is_not_stored_again():
    tracemalloc.start()
    source = bytearray(b"This is what follows: ")
    excerpt = Excerpt(source)
    source += b"He said 0 more, "
    excerpt.add("0 more, ")
    for number in range(1, 2_000):
        source += (text := f"{number} more, ").encode()
        excerpt.add(text)
    size = tracemalloc.get_traced_memory()[0] - sys.getsizeof(source)
    tracemalloc.stop()
    assert len(str(excerpt)) > 20_000
    assert size < 2_000


def test_the_source_of_an_excerpt_may_be_empty_at_first():
    source = bytearray()
    excerpt = Excerpt(source)
    source += b"one two"
    excerpt.add("one")
    excerpt.join()
    source += b" three"
    excerpt.add(" two")
    excerpt.join()
    excerpt.add(" three")
    assert str(excerpt) == "one two three"
