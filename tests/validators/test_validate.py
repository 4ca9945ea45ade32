"""Each rule of the validator is reported when a good stream violates it, and only then."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sweeps import each
from support.validators import assert_valid, validate_chat_error, validate_chat_stream, validate_chat_whole
from support.validators.framing import is_object_prefix

TOOLS = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
ASKED = {"tools": TOOLS, "stream_options": {"include_usage": True}}
HEADERS = {"content-type": "text/event-stream; charset=utf-8"}
USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}


def chunk(delta, reason=None, index=0, **more):
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [choice],
    } | more


def opener(index, identity, name):
    return {
        "tool_calls": [
            {"index": index, "id": identity, "type": "function", "function": {"name": name, "arguments": ""}}
        ]
    }


def piece(index, arguments):
    return {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}


ROLE, TEXT, OPEN, PIECE, REST, OPEN2, PIECE2, FINISH, TOTAL = range(9)
GOOD = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"content": "Let me"}),
    chunk(opener(0, "call_A", "f")),
    chunk(piece(0, '{"a"')),
    chunk(piece(0, ":1}")),
    chunk(opener(1, "call_B", "g")),
    chunk(piece(1, "{}")),
    chunk({}, "tool_calls"),
    chunk({}) | {"choices": [], "usage": USAGE},
]


def stream(chunks, end=b"data: [DONE]\n\n"):
    return b"".join(b"data: " + json.dumps(item, ensure_ascii=False).encode() + b"\n\n" for item in chunks) + end


def fired(data, request=ASKED, headers=HEADERS):
    return {(problem.rule, problem.severity) for problem in validate_chat_stream(data, request, headers=headers)}


def changed(*edits, request=ASKED):
    """Return the violations after editing the good stream: (position, function on the chunk), or (position, None) to
    omit it.
    """
    chunks = copy.deepcopy(GOOD)
    for position, edit in edits:
        if edit is None:
            chunks[position] = None
        else:
            result = edit(chunks[position])
            chunks[position] = result if isinstance(result, dict) and "object" in result else chunks[position]
    return fired(stream([item for item in chunks if item is not None]), request)


def choice(item):
    return item["choices"][0]


def delta(item):
    return choice(item)["delta"]


def call(item):
    return delta(item)["tool_calls"][0]


def test_a_good_stream_has_no_problem():
    assert_valid(validate_chat_stream(stream(GOOD), ASKED, headers=HEADERS), strict=True)
    assert validate_chat_stream(b": hello\n\n" + stream(GOOD)) == []


def test_problems_are_listed():
    problems = validate_chat_stream(stream(GOOD[:-2]), ASKED)
    with pytest.raises(AssertionError, match="C8 MUST: choice 0 has 0 finish reasons"):
        assert_valid(problems)


def test_a_should_is_reported_only_when_strict():
    problems = validate_chat_stream(stream(GOOD).replace(b"\n", b"\r\n"), ASKED)
    assert_valid(problems)
    with pytest.raises(AssertionError, match="F3 SHOULD"):
        assert_valid(problems, strict=True)


DATA = stream(GOOD)


@pytest.mark.parametrize(
    ("rule", "severity", "data"),
    [
        ("F1", "MUST", DATA.replace(b"Let me", b"Let \xff")),
        ("F2", "MUST", b"\xef\xbb\xbf" + DATA),
        ("F3", "MUST", DATA.replace(b"\n\n", b"\r\n\r\n", 1)),
        ("F3", "MUST", DATA.replace(b"\n", b"\r")),
        ("F3", "SHOULD", DATA.replace(b"\n", b"\r\n")),
        ("F4", "MUST", DATA[:-1]),
        ("F4", "MUST", DATA[:-2]),
        ("F5", "SHOULD", DATA.replace(b'"choices"', b'\ndata: "choices"', 1)),
        ("F6", "MUST", b"event: x\n\n" + DATA),
        ("F6", "MUST", b""),
        ("F6", "MUST", b": only a comment\n\n"),
        ("F7", "SHOULD", DATA.replace(b"[DONE]\n", b"[DONE]\nevent: x\n")),
        ("F8", "SHOULD", DATA.replace(b"data: ", b"data:", 1)),
        ("F9", "MUST", b"foo: bar\n" + DATA),
        ("F9", "SHOULD", b"id: 1\n" + DATA),
        ("F9", "SHOULD", b"retry: 1\n" + DATA),
        ("F10", "MUST", DATA.replace(b"Let me", b"Let \\ud83d")),
        ("F10", "SHOULD", DATA.replace(b"Let me", "Let \ufffd".encode())),
        ("C1", "MUST", DATA.replace(b'"Let me"', b'"Let me')),
        ("C1", "MUST", DATA.replace(b'"created": 1', b'"created": NaN', 1)),
        ("C1", "MUST", b"data: []\n\n" + DATA),
        ("C2", "SHOULD", b"event: message\n" + DATA),
        ("C2", "MUST", b"event: thread.run\n" + DATA),
        ("C3", "MUST", stream(GOOD, b"")),
        ("C3", "MUST", DATA + b"data: [DONE]\n\n"),
        ("C3", "MUST", b"data: [DONE]\n\n" + stream(GOOD, b"")),
    ],
)
def test_framing_and_the_end_mark(rule, severity, data):
    assert (rule, severity) in fired(data)


def test_f11_the_content_type():
    assert fired(DATA, headers={"Content-Type": "application/json"}) == {("F11", "MUST")}
    assert fired(DATA, headers={}) == {("F11", "MUST")}
    assert fired(DATA, headers=[(b"content-type", b"text/event-stream")]) == set()


@each(
    ("rule", "severity", "edits"),
    [
        ("C4", "MUST", [(TEXT, lambda item: item.pop("id"))]),
        ("C4", "MUST", [(TEXT, lambda item: item | {"object": "chat.completion"})]),
        ("C4", "MUST", [(TEXT, lambda item: item | {"created": 1.5})]),
        ("C4", "MUST", [(TEXT, lambda item: item | {"model": None})]),
        ("C4", "MUST", [(TEXT, lambda item: item | {"choices": None})]),
        ("C5", "MUST", [(TEXT, lambda item: item | {"id": "other"})]),
        ("C5", "MUST", [(TEXT, lambda item: item | {"created": 2})]),
        ("C5", "MUST", [(FINISH, lambda item: item | {"model": "other"})]),
        ("C6", "MUST", [(TEXT, lambda item: choice(item).pop("index"))]),
        ("C6", "MUST", [(TEXT, lambda item: choice(item).update(index=1))]),
        ("C6", "MUST", [(TEXT, lambda item: choice(item).pop("finish_reason"))]),
        ("C6", "MUST", [(TEXT, lambda item: choice(item).update(delta=None))]),
        ("C7", "MUST", [(ROLE, lambda item: delta(item).pop("role"))]),
        ("C7", "MUST", [(TEXT, lambda item: delta(item).update(role="assistant"))]),
        ("C7", "SHOULD", [(TEXT, lambda item: delta(item).update(role=None))]),
        ("C8", "MUST", [(FINISH, None)]),
        ("C8", "MUST", [(FINISH, lambda item: choice(item).update(finish_reason="done"))]),
        ("C8", "MUST", [(TEXT, lambda item: choice(item).update(finish_reason="tool_calls"))]),
        ("C8", "MUST", [(PIECE2, None), (FINISH, lambda item: delta(item).update(opener(1, "call_B", "g"))), (OPEN2, None)]),
        ("C8", "SHOULD", [(FINISH, lambda item: delta(item).update(piece(1, " ")))]),
        ("C9", "MUST", [(PIECE, lambda item: call(item).pop("index"))]),
        ("C9", "MUST", [(OPEN, lambda item: call(item).pop("id"))]),
        ("C9", "MUST", [(OPEN, lambda item: call(item).pop("type"))]),
        ("C9", "MUST", [(OPEN, lambda item: call(item)["function"].pop("name"))]),
        ("C9", "MUST", [(OPEN, lambda item: call(item)["function"].pop("arguments"))]),
        ("C9", "MUST", [(PIECE, lambda item: call(item)["function"].pop("arguments"))]),
        ("C9", "MUST", [(PIECE, lambda item: call(item).pop("function"))]),
        ("C9", "MUST", [(TEXT, lambda item: delta(item).update(tool_calls=[]))]),
        ("C9", "SHOULD", [(PIECE, lambda item: delta(item)["tool_calls"].append(call(item) | {"function": {"arguments": ""}}))]),
        ("C9", "SHOULD", [(PIECE2, lambda item: call(item)["function"].update(arguments=""))]),
        ("C10", "MUST", [(OPEN, lambda item: call(item).update(index=1))]),
        ("C10", "MUST", [(PIECE2, lambda item: call(item).update(index=0))]),
        ("C10", "MUST", [(OPEN2, lambda item: call(item).update(index=2))]),
        ("C11", "MUST", [(PIECE, lambda item: call(item).update(id="call_A"))]),
        ("C11", "MUST", [(PIECE, lambda item: call(item)["function"].update(name="f"))]),
        ("C11", "MUST", [(PIECE, lambda item: call(item).update(type=None))]),
        ("C11", "SHOULD", [(PIECE, lambda item: call(item).update(type="function"))]),
        ("C11", "SHOULD", [(PIECE, lambda item: call(item).update(id=""))]),
        ("C11", "SHOULD", [(PIECE, lambda item: call(item)["function"].update(name=None))]),
        ("C12", "MUST", [(REST, None)]),
        ("C12", "MUST", [(PIECE2, None)]),
        ("C12", "MUST", [(PIECE2, lambda item: call(item)["function"].update(arguments="[]"))]),
        ("C12", "MUST", [(REST, lambda item: call(item)["function"].update(arguments=":'x")), (FINISH, lambda item: choice(item).update(finish_reason="length"))]),
        ("C13", "MUST", [(OPEN2, lambda item: call(item).update(id="call_A"))]),
        ("C13", "MUST", [(OPEN2, lambda item: call(item).update(id="call.B"))]),
        ("C13", "MUST", [(OPEN2, lambda item: call(item).update(id="x" * 41))]),
        ("C13", "SHOULD", [(OPEN2, lambda item: call(item).update(id="toolu_1"))]),
        ("C14", "MUST", [(TOTAL, None)]),
        ("C14", "MUST", [(TOTAL, lambda item: item.pop("usage"))]),
        ("C14", "MUST", [(TOTAL, lambda item: item["usage"].update(total_tokens=None))]),
        ("C14", "MUST", [(TOTAL, lambda item: item["usage"].pop("prompt_tokens"))]),
        ("C14", "SHOULD", [(TOTAL, lambda item: item["usage"].update(total_tokens=5))]),
        ("C14", "MUST", [(TEXT, lambda item: item | {"usage": USAGE})]),
        ("C15", "SHOULD", [(PIECE2, lambda item: delta(item).update(content="more"))]),
        ("C16", "MUST", [(TEXT, lambda item: delta(item).update(content=["a"]))]),
        ("C16", "MUST", [(TEXT, lambda item: delta(item).update(refusal=5))]),
        ("C16", "SHOULD", [(TEXT, lambda item: delta(item).update(content=""))]),
        ("C16", "SHOULD", [(PIECE, lambda item: delta(item).update(content=None))]),
        ("C17", "MUST", [(FINISH, lambda item: choice(item).update(finish_reason="stop"))]),
        ("C17", "MUST", [(FINISH, lambda item: choice(item).update(finish_reason="function_call"))]),
        ("C17", "MUST", [(position, None) for position in (OPEN, PIECE, REST, OPEN2, PIECE2)]),
        ("C18", "MUST", [(TEXT, lambda item: item | {"error": None})]),
        ("C18", "MUST", [(TEXT, lambda item: item | {"error": {"message": "m", "type": "t"}})]),
        ("X1", "MUST", [(TEXT, lambda item: item | {"choices": [5]})]),
        ("X1", "MUST", [(PIECE, lambda item: delta(item).update(tool_calls=[5]))]),
    ],
)  # fmt: skip
def test_a_violation_in_a_stream_is_reported(rule, severity, edits):
    assert (rule, severity) in changed(*edits)


def test_a_truncated_call_is_valid_if_the_finish_reason_is_length():
    reason = (FINISH, lambda item: choice(item).update(finish_reason="length"))
    assert changed((PIECE2, None), reason) == set()
    assert changed((REST, None), (OPEN2, None), (PIECE2, None), reason) == set()


def test_all_choices_appear_in_order():
    asked = {"n": 2}
    both = [chunk({"role": "assistant"}, index=i) for i in (0, 1)] + [chunk({}, "stop", index=i) for i in (1, 0)]
    assert fired(stream(both), asked) == set()
    assert ("C6", "MUST") in fired(stream([both[1], both[0], *both[2:]]), asked)
    assert ("C6", "MUST") in fired(stream([both[0], both[3]]), asked)
    assert ("C6", "MUST") in fired(stream(both), {})
    assert ("C8", "MUST") in fired(stream(both[:3]), asked)


def test_c14_usage_that_was_not_requested():
    assert changed(request={"tools": TOOLS}) == {("C14", "MUST")}
    assert changed((TOTAL, None), request={"tools": TOOLS}) == set()


def test_c14_the_usage_chunk_is_last():
    assert ("C14", "MUST") in fired(stream([*GOOD[:-2], GOOD[-1], GOOD[-2]]))
    assert ("C14", "MUST") in fired(stream([*GOOD, GOOD[-1]]))


ERROR = {"error": {"message": "m", "type": "t", "param": None, "code": None}}


class TestErrors:
    @pytest.mark.parametrize("end", [b"", b"data: [DONE]\n\n"])
    @pytest.mark.parametrize("before", range(8))
    def test_a_stream_may_break_anywhere(self, before, end):
        assert fired(stream([*GOOD[:before], ERROR], end)) == set()

    def test_nothing_may_follow_an_error(self):
        assert ("C18", "MUST") in fired(stream([GOOD[0], ERROR, GOOD[1]]))

    @pytest.mark.parametrize("error", ["boom", {}, {"type": "t"}, {"message": 5, "type": "t"}, {"message": "m"}])
    def test_the_shape_of_an_error(self, error):
        assert ("C18", "MUST") in fired(stream([GOOD[0], {"error": error}]))
        found = {(each.rule, each.severity) for each in validate_chat_error(json.dumps({"error": error}).encode())}
        assert ("E1", "MUST") in found

    def test_param_and_code(self):
        bare = {"error": {"message": "m", "type": "t"}}
        assert ("E3", "SHOULD") in fired(stream([GOOD[0], bare]))
        wrong = {"error": {"message": "m", "type": "t", "param": 5, "code": None}}
        assert ("E3", "MUST") in fired(stream([GOOD[0], wrong]))

    def test_error_bodies(self):
        assert validate_chat_error(json.dumps(ERROR).encode()) == []
        assert [each.rule for each in validate_chat_error(b"<html>")] == ["E1"]
        assert [each.rule for each in validate_chat_error(b"[]")] == ["E1"]


class TestRequest:
    @pytest.mark.parametrize(
        "more",
        [
            {"tools": TOOLS[:1]},
            {"tools": None},
            {"parallel_tool_calls": False},
            {"tool_choice": "none"},
            {"tool_choice": {"type": "function", "function": {"name": "f"}}},
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": TOOLS[:1]}}},
        ],
    )
    def test_c19_disallowed_calls(self, more):
        assert ("C19", "MUST") in changed(request=ASKED | more)

    @pytest.mark.parametrize("demand", ["required", {"type": "function", "function": {"name": "f"}}])
    def test_c19_a_missing_call(self, demand):
        plain = [GOOD[ROLE], GOOD[TEXT], chunk({}, "stop"), GOOD[TOTAL]]
        assert fired(stream(plain)) == set()
        assert fired(stream(plain), ASKED | {"tool_choice": demand}) == {("C19", "MUST")}

    @pytest.mark.parametrize(
        "more",
        [
            {"tool_choice": "auto"},
            {"tool_choice": "required"},
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": TOOLS}}},
            {"tools": None, "messages": [{"tool_calls": [{"function": {"name": name}} for name in "fg"]}]},
        ],
    )
    def test_allowed_calls(self, more):
        assert changed(request=ASKED | more) == set()

    def test_c20_legacy_functions(self):
        legacy = [
            GOOD[ROLE],
            chunk({"function_call": {"name": "f", "arguments": ""}}),
            chunk({"function_call": {"arguments": "{}"}}),
            chunk({}, "function_call"),
        ]
        assert fired(stream(legacy), {"functions": [{"name": "f"}]}) == set()
        assert fired(stream(legacy), {"tools": TOOLS}) == {("C20", "MUST")}
        asked = {"functions": [{"name": "f"}, {"name": "g"}], "stream_options": {"include_usage": True}}
        assert ("C20", "MUST") in changed(request=asked)
        assert ("C17", "MUST") in fired(stream([*legacy[:3], chunk({}, "tool_calls")]), {"functions": [{"name": "f"}]})
        legacy[2]["choices"][0]["delta"]["function_call"]["name"] = "f"
        assert ("C11", "MUST") in fired(stream(legacy), {"functions": [{"name": "f"}]})

    def test_custom_tools(self):
        asked = {"tools": [{"type": "custom", "custom": {"name": "sh"}}]}
        entry = {"index": 0, "id": "call_A", "type": "custom", "custom": {"name": "sh", "input": ""}}
        rest = {"index": 0, "custom": {"input": "ls {"}}
        chunks = [GOOD[ROLE], chunk({"tool_calls": [entry]}), chunk({"tool_calls": [rest]}), chunk({}, "tool_calls")]
        assert fired(stream(chunks), asked) == set()


WHOLE = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": None,
                "refusal": None,
                "tool_calls": [
                    {"id": "call_A", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                    {"id": "call_B", "type": "function", "function": {"name": "g", "arguments": '{"a":1}'}},
                ],
            },
            "logprobs": None,
            "finish_reason": "tool_calls",
        }
    ],
    "usage": USAGE,
}


def message(body):
    return body["choices"][0]["message"]


def whole_fired(edit=None, request=ASKED, headers=None):
    body = copy.deepcopy(WHOLE)
    result = edit(body) if edit else None
    data = json.dumps(result if isinstance(result, dict) and "object" in result else body).encode()
    return {(each.rule, each.severity) for each in validate_chat_whole(data, request, headers=headers)}


def test_a_good_complete_reply_has_no_problem():
    assert whole_fired(headers={"content-type": "application/json"}) == set()


@each(
    ("rule", "severity", "edit"),
    [
        ("CW1", "MUST", lambda body: body | {"id": ""}),
        ("CW1", "MUST", lambda body: body | {"object": "chat.completion.chunk"}),
        ("CW1", "MUST", lambda body: body | {"created": "1"}),
        ("CW1", "MUST", lambda body: body | {"model": None}),
        ("CW1", "MUST", lambda body: body | {"choices": []}),
        ("CW1", "MUST", lambda body: body | {"error": None}),
        ("CW2", "MUST", lambda body: body["choices"][0].update(index=1)),
        ("CW2", "MUST", lambda body: body["choices"].append(body["choices"][0])),
        ("CW2", "MUST", lambda body: body["choices"][0].pop("message")),
        ("CW2", "MUST", lambda body: message(body).pop("content")),
        ("CW2", "MUST", lambda body: message(body).update(content=[])),
        ("CW2", "MUST", lambda body: message(body).update(role="user")),
        ("CW2", "SHOULD", lambda body: message(body).pop("refusal")),
        ("CW2", "SHOULD", lambda body: body["choices"][0].pop("logprobs")),
        ("CW2", "SHOULD", lambda body: message(body).pop("tool_calls")),
        ("CW3", "MUST", lambda body: message(body).update(tool_calls=[])),
        ("CW3", "MUST", lambda body: message(body)["tool_calls"][0].pop("id")),
        ("CW3", "MUST", lambda body: message(body)["tool_calls"][0].pop("type")),
        ("CW3", "MUST", lambda body: message(body)["tool_calls"][0].pop("function")),
        ("CW3", "MUST", lambda body: message(body)["tool_calls"][0]["function"].pop("name")),
        ("CW3", "MUST", lambda body: message(body)["tool_calls"][0]["function"].update(arguments={})),
        ("CW3", "MUST", lambda body: message(body)["tool_calls"][0]["function"].update(arguments="")),
        ("CW3", "MUST", lambda body: message(body)["tool_calls"][1].update(id="call_A")),
        ("CW3", "MUST", lambda body: message(body).update(function_call={"name": "f"})),
        ("CW4", "MUST", lambda body: body["choices"][0].update(finish_reason="stop")),
        ("CW4", "MUST", lambda body: body["choices"][0].update(finish_reason=None)),
        ("CW5", "MUST", lambda body: body | {"usage": None}),
        ("CW5", "MUST", lambda body: body["usage"].pop("total_tokens")),
        ("F10", "MUST", lambda body: message(body).update(content="\ud83d")),
        ("X1", "MUST", lambda body: body | {"choices": [5]}),
        ("C19", "MUST", lambda body: message(body)["tool_calls"][0]["function"].update(name="nope")),
    ],
)
def test_a_violation_in_a_complete_reply_is_reported(rule, severity, edit):
    assert (rule, severity) in whole_fired(edit)


def test_a_reply_that_is_not_a_json_object():
    assert [each.rule for each in validate_chat_whole(b"<html>")] == ["CW1"]
    assert [each.rule for each in validate_chat_whole(b"[]")] == ["CW1"]
    assert whole_fired(headers={"content-type": "text/plain"}) == {("F11", "MUST")}


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=3), each, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=3), values, max_size=4), st.booleans(), st.sampled_from([None, 1]))
def test_every_prefix_of_an_object_is_an_object_prefix(value, ascii_only, indent):
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    for end in range(len(text) + 1):
        assert is_object_prefix(text[:end]), text[:end]


NO_BEGINNINGS = """[ | "a" | {a | {'a | {"a" 1 | {"a":1,} | {"a":tru e | {"a":1}} | {"a":01 | {"a":[1,] | {"a":[1} | {"a":"\\x
 | {"a":1 2 | {"a":"\t | {"a":.5 | {, | {"a":1}x | {"a":-x | {"a":1.e | {"a":nul l | {"a":1e+. | {"a":truex"""


@pytest.mark.parametrize("text", [each.strip(" \n") for each in NO_BEGINNINGS.split("|")])
def test_other_text_is_not_an_object_prefix(text):
    assert not is_object_prefix(text)
