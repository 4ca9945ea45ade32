"""The grammar of the text that may follow another: exactly the rests of the sentences of the whole grammar."""

import json
import random
import time

import pytest
from support.gbnf import grammar
from support.sweeps import each

from statemachine import FORMATS, Call, write
from streamtool.core.conversation import Conversation, Forcing, Message, Tool, ToolChoice
from streamtool.forcing import call_grammar, call_schema, continuation_grammar
from streamtool.forcing.continuation import MAX_TEXT, rest_grammar

WRITE = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "maxLength": 40},
        "content": {"type": "string"},
        "lines": {"type": "integer"},
    },
    "required": ["path", "content"],
}
TOOLS = (Tool("write_file", parameters=WRITE), Tool("ping", parameters={"type": "object", "properties": {}}))
ARGUMENTS = {"path": "größe.py", "content": 'x = 3.14\t# "π", 円周率\n', "lines": 12}
CALL = Call("write_file", json.dumps(ARGUMENTS, ensure_ascii=False))


def made(format: str, *, forced: bool = True, lazy: bool = False) -> tuple[str, tuple[str, ...]]:
    found = call_grammar(TOOLS, format, forced=forced, parallel=True, lazy=lazy)
    assert found is not None
    return found


@each("format", FORMATS)
def test_each_beginning_of_a_sentence_has_a_rest(format: str):
    whole, _ = made(format)
    chance = random.Random(format)
    sentence = grammar(whole).sentence(chance.randrange, 60)
    for cut in chance.sample(range(len(sentence) + 1), 2):
        rest = rest_grammar(whole, sentence[:cut])
        assert rest is not None
        assert rest_grammar(rest, sentence[cut:]) is not None
    if chance.random() < 0.1:
        assert rest_grammar(whole, sentence[:cut] + grammar(rest).sentence(chance.randrange, 60)) is not None


def test_text_before_a_call_that_is_not_forced():
    whole, _ = made("tool_call", forced=False)
    text = f"I write it. {write([CALL], 'tool_call')}"
    for cut in range(len(text)):
        rest = rest_grammar(whole, text[:cut])
        assert rest is not None
        assert rest_grammar(rest, text[cut:]) is not None


def test_a_text_that_the_grammar_does_not_allow_has_no_rest():
    whole, _ = made("tool_call")
    for text in ("I", '<tool_call>\n{"name": "other"', '<tool_call>\n{"name": "ping", "arguments": {"x'):
        assert rest_grammar(whole, text) is None
    assert rest_grammar('root ::= "a"*\n', "a" * (MAX_TEXT + 1)) is None
    assert rest_grammar('root ::= ( root "a" )? "b"\n', "b") is None


def test_the_rest_may_begin_with_a_repetition():
    rest = rest_grammar('root ::= "[" [0-9]{2,3} "]"\n', "[12", "2")
    assert rest is not None
    assert [rest_grammar(rest, text) is not None for text in ("2]", "23]", "2", "3]", "]", "234]")] == [
        *(True, True, True),
        *(False, False, False),
    ]


def asked(mode: str) -> Conversation:
    return Conversation("chat", "m", (Message("user"),), tools=TOOLS, choice=ToolChoice(mode))


@each("format", ["tool_call", "invoke"])
def test_a_lazy_grammar_applies_from_its_trigger(format: str):
    whole, triggers = made(format, forced=False, lazy=True)
    forcing, call = Forcing("grammar", whole, triggers), write([CALL], format)
    text = f"I write it. {call}"
    for cut in range(0, len(text), 3):
        rest = continuation_grammar(forcing, asked("auto"), format, text=text[:cut])
        assert rest is not None
        assert rest_grammar(rest, text[cut:]) is not None
        assert rest_grammar(rest, f"{text[cut:]}, and that is all") is None


def test_a_schema_is_continued_as_a_grammar():
    forcing = Forcing("schema", call_schema(TOOLS, "tool_call"))
    text = json.dumps({"name": "write_file", "arguments": ARGUMENTS}, ensure_ascii=False, indent=2)
    for cut in range(len(text)):
        rest = continuation_grammar(forcing, asked("required"), "tool_call", text=text[:cut])
        assert rest is not None
        assert rest_grammar(rest, text[cut:]) is not None
    for forcing in (Forcing("prefill", "{"), Forcing("structural_tag", {})):
        assert continuation_grammar(forcing, asked("required"), "tool_call", text="{") is None


@pytest.mark.long
def test_a_long_argument_does_not_take_long():
    whole, _ = made("tool_call")
    arguments = {"path": "a.py", "content": ARGUMENTS["content"] * 1200}
    text = write([Call("write_file", json.dumps(arguments, ensure_ascii=False))], "tool_call")
    before = time.process_time()
    assert rest_grammar(whole, text[:-40]) is not None
    assert time.process_time() - before < 0.2
