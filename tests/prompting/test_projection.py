"""A conversation with tools, projected to one for a text-only model."""

import copy
from itertools import chain, product

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from statemachine import FORMATS
from streamtool.core.conversation import (
    Conversation,
    MediaPart,
    Message,
    TextPart,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
)
from streamtool.core.errors import RequestError
from streamtool.prompting import build_tool_prompt, choice_text, project
from streamtool.settings import ResultSettings, Settings

TOOLS = (Tool("f", "Does f.", {"properties": {"a": {"type": "string"}}}), Tool("g"))
RAW = ({"role": "user", "content": "as it came"},)
ASK = Message("user", (TextPart("do it"),), raw=RAW)
CALLS = Message(
    "assistant", (TextPart("I look."),), calls=(ToolCall("c1", "f", '{"a": "x"}'), ToolCall("c2", "g", "{}")), raw=RAW
)
CALLED = 'I look.\nTOOL_CALL: f\nARGUMENTS: {"a": "x"}\nTOOL_CALL: g\nARGUMENTS: {}'


def model(**kinds):
    return Settings(**{"results": ResultSettings(frame="doai"), "roles": "free", **kinds}).for_model("m")


def asked(*messages, tools=TOOLS, choice=None):
    return Conversation("chat", "m", messages, tools, choice=choice or ToolChoice())


def results(*pairs, content=()):
    return Message("user", content, results=tuple(ToolResult(id, (TextPart(text),)) for id, text in pairs), raw=RAW)


def shown(conversation, format="labelled", **kinds):
    return [(m.role, m.text) for m in project(conversation, model(**kinds), format).messages]


CONTRACT = build_tool_prompt(TOOLS, "labelled", model()).text


def test_without_tools_and_tool_history_nothing_changes():
    plain = asked(ASK, tools=())
    assert project(plain, model(), "tool_call") is plain


def test_the_tool_prompt_follows_the_clients_own_system_text():
    system = Message("system", (TextPart("Be good."),), raw=RAW)
    assert shown(asked(ASK)) == [("system", CONTRACT), ("user", "do it")]
    assert shown(asked(system, ASK)) == [("system", f"Be good.\n\n{CONTRACT}"), ("user", "do it")]
    assert shown(asked(system, system, ASK))[:2] == [("system", "Be good."), ("system", f"Be good.\n\n{CONTRACT}")]


def test_projection_leaves_no_trace_of_tools():
    projected = project(asked(ASK, CALLS, results(("c1", "1"), ("c2", "2"))), model(), "labelled")
    assert projected.tools == ()
    assert projected.choice == ToolChoice()
    assert not projected.has_tool_history


def test_unchanged_messages_keep_their_raw_form():
    first, answer = Message("system", (TextPart("s"),), raw=RAW), Message("assistant", (TextPart("hi"),), raw=RAW)
    projected = project(asked(first, ASK, answer, ASK, CALLS, results(("c1", ""), ("c2", ""))), model(), "labelled")
    assert [bool(m.raw) for m in projected.messages] == [False, True, True, True, False, False]


def test_the_given_conversation_is_not_modified():
    given_ = asked(Message("system", (TextPart("s"),)), ASK, CALLS, results(("c1", "1"), ("c2", "2")))
    before = copy.deepcopy(given_)
    project(given_, model(), "tool_call", correction="again")
    assert given_ == before


def test_calls_and_results_become_text_in_the_order_of_the_calls():
    assert shown(asked(ASK, CALLS, results(("c2", "two")), results(("c1", "one"))))[2:] == [
        ("assistant", CALLED),
        ("user", "[Tool Result]: one\n\n[Tool Result]: two"),
    ]


def test_user_text_next_to_results_follows_them():
    message = results(("c1", "one"), ("c2", "two"), content=(TextPart("go on"),))
    assert shown(asked(ASK, CALLS, message))[-1] == ("user", "[Tool Result]: one\n\n[Tool Result]: two\n\ngo on")


def test_an_unanswered_call_before_a_user_message_is_interrupted():
    projected = project(asked(ASK, CALLS, results(("c2", "two")), ASK), model(), "labelled")
    assert [(m.role, m.text) for m in projected.messages[3:]] == [
        ("user", "[Tool Result]: (no result: interrupted)\n\n[Tool Result]: two"),
        ("user", "do it"),
    ]
    assert projected.messages[-1].raw == RAW
    assert projected.dropped == ("call c1 has no result: interrupted",)


def test_an_assistant_message_interrupts_too():
    answer = Message("assistant", (TextPart("never mind"),))
    assert shown(asked(ASK, CALLS, answer, ASK))[3:] == [
        ("user", "[Tool Result]: (no result: interrupted)\n\n[Tool Result]: (no result: interrupted)"),
        ("assistant", "never mind"),
        ("user", "do it"),
    ]


def test_an_orphan_result_becomes_user_text():
    projected = project(asked(ASK, results(("zz", "lost"))), model(), "labelled")
    assert projected.messages[-1].text == "Result of an earlier call that is not shown:\nlost"
    assert projected.dropped == ("result zz has no call",)


@pytest.mark.parametrize(
    "messages",
    [(ASK, CALLS, results(("c2", "two")), ASK), (ASK, results(("zz", "lost")))],
    ids=["interrupted", "orphan"],
)
def test_a_strict_history_must_be_complete(messages):
    with pytest.raises(RequestError):
        project(asked(*messages), model(history="strict"), "labelled")


def test_an_unanswered_call_at_the_end_is_an_error_that_names_it():
    with pytest.raises(RequestError, match="c1") as caught:
        project(asked(ASK, CALLS, results(("c2", "two"))), model(), "labelled")
    assert "c2" not in caught.value.message


def test_a_request_with_tool_history_but_no_tools_stays_emulated():
    messages = shown(asked(ASK, CALLS, results(("c1", "1"), ("c2", "2")), tools=()))
    assert "call them as earlier in this conversation.\n\nf\ng\n" in messages[0][1]
    assert 'TOOL_CALL: f\nARGUMENTS: {"a": "x"}' in messages[0][1]
    assert messages[2] == ("assistant", CALLED)


def test_turn_instructions_and_a_correction_follow_the_last_message():
    projected = project(asked(ASK, choice=ToolChoice("none")), model(), "labelled", correction="Once more.")
    assert projected.messages[-1] == Message(
        "user", (TextPart("do it\n\nOnce more.\n\nFor this reply: write no call. Answer without tools."),)
    )
    assert CONTRACT in projected.messages[0].text


def test_turn_instructions_after_a_message_of_another_role_are_a_separate_message():
    late = Message("system", (TextPart("late"),), raw=RAW)
    projected = project(asked(ASK, late, choice=ToolChoice("auto", ("f",))), model(), "labelled")
    tail = Message("user", (TextPart("For this reply: call only these tools: `f`."),))
    assert projected.messages[-2:] == (late, tail)


def test_turn_instructions_after_a_picture_are_a_separate_part():
    picture = MediaPart("image", {"type": "image_url"})
    asking = Message("user", (TextPart("what is it?"), picture), raw=RAW)
    projected = project(asked(asking, choice=ToolChoice("auto", ("f",))), model(), "labelled")
    assert projected.messages[-1].content == (
        TextPart("what is it?"),
        picture,
        TextPart("For this reply: call only these tools: `f`."),
    )


def test_a_continued_reply_precedes_the_turn_instructions():
    projected = project(asked(ASK), model(), "labelled", correction="Go on.", continued="So far")
    assert [(m.role, m.text) for m in projected.messages[1:]] == [
        ("user", "do it"),
        ("assistant", "So far"),
        ("user", "Go on."),
    ]


def test_a_picture_in_a_result_is_kept_next_to_its_text():
    picture = MediaPart("image", {"type": "image_url"})
    message = Message("user", results=(ToolResult("c1", (picture,)), ToolResult("c2", (TextPart("ok"),))))
    projected = project(asked(ASK, CALLS, message), model(), "labelled")
    assert projected.messages[-1].content == (TextPart("[Tool Result]: [image]\n\n[Tool Result]: ok"), picture)


def test_reminders_are_stripped_from_results_and_user_text():
    noisy = "<system-reminder>x</system-reminder>"
    kinds = {"results": ResultSettings(frame="doai", strip=("system-reminder",))}
    conversation = asked(
        Message("user", (TextPart(f"{noisy}\nask"), TextPart(noisy)), raw=RAW),
        ASK,
        CALLS,
        results(("c1", f"{noisy}one"), ("c2", noisy)),
        Message("user", (TextPart(noisy),), raw=RAW),
    )
    assert shown(conversation, **kinds)[1:] == [
        ("user", "ask"),
        ("user", "do it"),
        ("assistant", CALLED),
        ("user", "[Tool Result]: one\n\n[Tool Result]: (no output)"),
    ]


def test_without_a_system_role_everything_folds_into_alternating_messages():
    system = Message("system", (TextPart("Be good."),))
    empty = Message("assistant")
    done = Message("assistant", (TextPart("done"),), raw=RAW)
    conversation = asked(
        system,
        ASK,
        ASK,
        CALLS,
        results(("c1", "1"), ("c2", "2")),
        done,
        system,
        ASK,
        empty,
        ASK,
        choice=ToolChoice("none"),
    )
    assert shown(conversation, system_role=False) == [
        ("user", f"Be good.\n\n{CONTRACT}\n\ndo it\n\ndo it"),
        ("assistant", CALLED),
        ("user", "[Tool Result]: 1\n\n[Tool Result]: 2"),
        ("assistant", "done"),
        ("user", f"Be good.\n\ndo it\n\ndo it\n\n{choice_text(ToolChoice('none'))}"),
    ]


def test_empty_messages_are_left_out_except_the_last():
    silent = (
        Message("system", (TextPart(""),), raw=RAW),
        Message("assistant", (TextPart(" \n"),), raw=RAW),
        Message("user"),
    )
    thought = Message("assistant", reasoning="hm", raw=RAW)
    assert shown(asked(*silent, ASK, *silent, thought, *silent)) == [
        ("system", CONTRACT),
        ("user", "do it"),
        ("assistant", ""),
        ("user", ""),
    ]


def test_string_only_content_joins_parts_and_names_pictures():
    picture = MediaPart("image", {"type": "image_url"})
    asking = Message("user", (TextPart("what is"), picture, TextPart("this?")), raw=RAW)
    message = Message("user", results=(ToolResult("c1", (TextPart("a dot"), picture)), ToolResult("c2", ())))
    projected = project(asked(asking, CALLS, message), model(media=False), "labelled")
    assert [message.content for message in projected.messages] == [
        (TextPart(CONTRACT),),
        (TextPart("what is\n[image]\nthis?"),),
        (TextPart(CALLED),),
        (TextPart("[Tool Result]: a dot\n[image]\n\n[Tool Result]: (no output)"),),
    ]
    assert not any(message.raw for message in projected.messages)


def test_in_a_single_object_format_the_history_consists_of_objects():
    done = Message("assistant", (TextPart("Well done"),), raw=RAW)
    conversation = asked(
        ASK, Message("assistant", (TextPart("look"),), (ToolCall("c", "f", "{}"),)), results(("c", "1")), done, ASK
    )
    messages = shown(conversation, "action_object")
    assert messages[2] == ("assistant", '{"thought": "look", "action": {"tool": "f", "args": {}}}')
    assert messages[4] == ("assistant", '{"final": {"content": "Well done"}}')


def test_shortened_tools_are_reported():
    assert project(asked(ASK), model(schema_budget=1), "labelled").dropped == ("tools shortened to names",)


# --- roles -----------------------------------------------------------------------------------------------------------

CHOICES = st.sampled_from(
    [
        ToolChoice(),
        ToolChoice("none"),
        ToolChoice("required"),
        ToolChoice("required", ("f",)),
        ToolChoice("auto", ("f",)),
    ]
)


def test_strict_roles_are_one_system_message_then_user_and_assistant_alternating():
    system, late = (Message("system", (TextPart(text),), raw=RAW) for text in ("Be good.", "Be brief."))
    done, empty = Message("assistant", (TextPart("done"),), raw=RAW), Message("assistant")
    conversation = asked(system, late, ASK, late, CALLS, results(("c1", "1"), ("c2", "2")), ASK, done, late, ASK, empty)
    assert shown(conversation, roles="strict") == [
        ("system", f"Be good.\n\nBe brief.\n\n{CONTRACT}"),
        ("user", "do it\n\nBe brief."),
        ("assistant", CALLED),
        ("user", "[Tool Result]: 1\n\n[Tool Result]: 2\n\ndo it"),
        ("assistant", "done"),
        ("user", "Be brief.\n\ndo it"),
        ("assistant", ""),
    ]


def test_messages_that_already_alternate_are_unchanged():
    done = Message("assistant", (TextPart("done"),), raw=RAW)
    projected = project(asked(ASK, done, ASK), model(roles="strict"), "labelled")
    assert [message.raw for message in projected.messages[1:]] == [RAW, RAW, RAW]


@pytest.mark.parametrize("last", ["last", " "])
def test_strict_roles_alternate_whatever_the_client_sends(last):
    for roles in chain.from_iterable(product(("system", "user", "assistant"), repeat=count) for count in range(1, 6)):
        texts = [*(f"text {place}" for place in range(len(roles) - 1)), last]
        messages = [Message(role, (TextPart(text),)) for role, text in zip(roles, texts, strict=True)]
        said = shown(asked(*messages), roles="strict")
        turns = [role for role, _ in said[said[0][0] == "system" :]]
        assert turns == [("user", "assistant")[place % 2] for place in range(len(turns))], roles
        whole = "\n".join(text for _, text in said)
        places = [whole.find(text) for text in texts if text.strip()]
        assert -1 not in places
        assert places == sorted(places)


def test_a_user_line_precedes_a_conversation_that_starts_with_the_assistant():
    hello = Message("assistant", (TextPart("Hello."),), raw=RAW)
    assert shown(asked(hello, ASK), roles="strict")[1:] == [
        ("user", "(The assistant speaks first.)"),
        ("assistant", "Hello."),
        ("user", "do it"),
    ]


@pytest.mark.parametrize(
    ("name", "roles", "system_role"),
    [
        ("m", "strict", True),
        ("google/gemma-2-9b-it", "strict", False),
        ("gemma-7b-it", "strict", False),
        ("gemma-3-27b-it", "strict", True),
        ("claude-sonnet-4-5", "free", True),
        ("gpt-5.1", "free", True),
        ("gpt-oss-20b", "strict", True),
        ("gemini-3-pro", "free", True),
    ],
)
def test_the_family_determines_the_roles_a_template_accepts(name, roles, system_role):
    prompt = Settings().for_model(name).prompt
    assert (prompt.roles, prompt.system_role) == (roles, system_role)


@settings(deadline=None)
@given(st.lists(st.sampled_from(["system", "user", "assistant", "call", ""]), max_size=12), st.booleans(), CHOICES)
def test_every_chat_template_accepts_the_roles(said, system_role, choice):
    """At most one system message, at the start; then user and assistant alternate, the user first; none is empty."""
    messages = []
    for number, kind in enumerate(said):
        if kind == "call":
            call = ToolCall(f"c{number}", "f", "{}")
            messages += [Message("assistant", (TextPart("so"),), (call,)), results((call.id, "r"))]
        else:
            messages.append(Message(kind or "user", (TextPart(kind and f"{kind} {number}"),), raw=RAW))
    projected = project(
        asked(*messages, ASK, choice=choice), model(roles="strict", system_role=system_role), "labelled"
    )
    roles = [message.role for message in projected.messages]
    assert roles[0] == ("system" if system_role else "user")
    rest = roles[1:] if system_role else roles
    assert rest == ["user", "assistant"] * (len(rest) // 2) + ["user"] * (len(rest) % 2)
    assert all(message.text.strip() for message in projected.messages)
    whole = "".join(message.text for message in projected.messages)
    assert all(f"{kind} {number}" in whole for number, kind in enumerate(said) if kind not in ("", "call"))


# --- the stable prefix -----------------------------------------------------------------------------------------------

WORDS = st.sampled_from(["do it", "", "and now?\n", "<tool_call>", "line\n\nline"])
ROLES = st.tuples(st.sampled_from(["strict", "free"]), st.booleans())
"""The roles, and whether there is a system role."""


@st.composite
def turns(draw):
    """Generate a conversation turn by turn: the new messages and the tool choice of each request."""
    made = []
    for number in range(draw(st.integers(2, 5))):
        new = []
        if number and draw(st.booleans()):
            ids = [f"c{number}_{i}" for i in range(draw(st.integers(1, 3)))]
            calls = tuple(ToolCall(id, draw(st.sampled_from("fg")), '{"a": 1}') for id in ids)
            new.append(Message("assistant", (TextPart(draw(WORDS)),), calls))
            new.extend(results((id, draw(WORDS))) for id in draw(st.permutations(ids)))
            if draw(st.booleans()):
                new.pop()
                new.append(Message("user", (TextPart("stop"),), raw=RAW))
        else:
            if number and draw(st.booleans()):
                new.append(Message("assistant", (TextPart(draw(WORDS)),), raw=RAW))
            new.append(Message("user", (TextPart(draw(WORDS) + "!"),), raw=RAW))
        if draw(st.integers(0, 5)) == 0:
            new.append(results(("orphan", "lost")))
        made.append((tuple(new), draw(CHOICES)))
    return made


def prompt(conversation, format, roles, system_role):
    projected = project(conversation, model(roles=roles, system_role=system_role), format)
    return "".join(f"\0{message.role}\0{message.text}" for message in projected.messages)


@settings(deadline=None)
@given(turns(), st.sampled_from(sorted(FORMATS)), ROLES, st.booleans(), st.booleans())
def test_the_prompt_without_turn_instructions_is_a_prefix_of_the_next_prompt(made, format, roles, own_system, parallel):
    roles, system_role = roles
    so_far = (Message("system", (TextPart("s"),), raw=RAW),) if own_system else ()
    before = ""
    for new, drawn in made:
        so_far += new
        choice = evolve(drawn, parallel=parallel)
        whole = prompt(asked(*so_far, choice=choice), format, roles, system_role)
        assert whole.startswith(before)
        tail = choice_text(choice)
        assert whole.endswith(tail)
        before = whole.removesuffix(f"\n\n{tail}") if tail else whole


def test_the_limit_of_one_call_is_a_rule_of_the_tool_prompt():
    several, one = (
        project(asked(ASK, choice=ToolChoice(parallel=parallel)), model(), "labelled").messages[0].text
        for parallel in (True, False)
    )
    assert "you may write several in one reply:\n\nTOOL_CALL: f\n" in several
    assert "several" not in one
    assert "- Write at most one call in a reply.\n" in one
