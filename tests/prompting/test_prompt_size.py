"""The size of the tool prompt: its fixed part, and the tools compared with their JSON (`benchmarks/prompt_size.py`)."""

import sys
from pathlib import Path

from support.agent_requests import every
from support.sweeps import each

from statemachine import FORMATS
from streamtool.models.families import is_teachable
from streamtool.settings import Settings

sys.path.append(str(Path(__file__).parent.parent.parent / "benchmarks"))
from prompt_size import FIXED, SIGNATURES, SMALL, size_of, tools_of


@each("format", [name for name in FORMATS if is_teachable(name)])
def test_the_fixed_part_is_short_in_each_format_of_ordinary_text(format: str):
    size = size_of([SMALL], Settings(format=format).for_model(""))
    assert 200 < size.fixed <= FIXED
    assert size.prompt - size.fixed < 50


@each("asked", every(1), ids=lambda asked: asked.name)
def test_the_tools_of_agents_take_less_text_than_their_json(asked):
    size = size_of(tools_of(asked.data), Settings(format="invoke").for_model(""))
    assert 200 < size.fixed <= FIXED
    assert 0.1 < size.signatures <= SIGNATURES
    assert size.prompt - size.fixed < size.json
