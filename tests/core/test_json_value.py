"""Lines of JSON."""

import json

import pytest

from streamtool.core.json_value import LINE_SEPARATORS, json_line


@pytest.mark.parametrize("char", [chr(code) for code in range(0x3000) if len(f"a{chr(code)}b".splitlines()) > 1])
def test_no_character_breaks_a_line_of_json(char: str):
    assert ord(char) < 0x20 or char in LINE_SEPARATORS
    line = json_line({f"a{char}": f"b{char}c", "d": [f"{char}é"]})
    assert line.splitlines() == [line]
    assert json.loads(line) == {f"a{char}": f"b{char}c", "d": [f"{char}é"]}
