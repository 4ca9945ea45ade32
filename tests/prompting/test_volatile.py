"""Volatile text: text that changes with each request is left out or follows the last message, and nothing else moves."""

import json

import pytest
from support.sweeps import each

from streamtool.core.conversation import Conversation, Message, TextPart, ToolResult
from streamtool.prompting import stabilize

HELLO = Message("user", (TextPart("Hello."),), raw=({"role": "user", "content": "Hello."},))
MOVED = {
    "Current time is 10:30:12. Today's date is 2026-11-27.\nBe brief.": (
        "Current time is 10:30:12.",
        "Today's date is 2026-11-27.\nBe brief.",
    ),
    "You are quick. The current date is 2026-11-27 10:30:05.\n\n# Role": (
        "The current date is 2026-11-27 10:30:05.",
        "You are quick. \n\n# Role",
    ),
    "# Bot\n\n## Current Time\n2026-02-06 10:30 (Friday)\n\n## Runtime": (
        "## Current Time\n2026-02-06 10:30 (Friday)",
        "# Bot\n\n\n## Runtime",
    ),
    "A\n<CURRENT_DATETIME>\nThe current date and time is: 2026-06-11T00:44:42.714237\n</CURRENT_DATETIME>\nB": (
        "<CURRENT_DATETIME>\nThe current date and time is: 2026-06-11T00:44:42.714237\n</CURRENT_DATETIME>",
        "A\nB",
    ),
    "A\nCurrent date and time: Friday, March 6, 2026 at 10:30:15 AM GMT+1\nCurrent working directory: /x": (
        "Current date and time: Friday, March 6, 2026 at 10:30:15 AM GMT+1",
        "A\nCurrent working directory: /x",
    ),
    "<env>\n  Platform: linux\n  Current time: 2026-11-27 10:30:11\n</env>": (
        "Current time: 2026-11-27 10:30:11",
        "<env>\n  Platform: linux\n</env>",
    ),
    "The local time is 10:30 p.m. UTC. Be brief.": ("The local time is 10:30 p.m. UTC.", "Be brief."),
    "Be kind.\nCurrent timestamp: 1764200000": ("Current timestamp: 1764200000", "Be kind.\n"),
    "Datetime: 2026-11-27 10:30:00\nBe kind.": ("Datetime: 2026-11-27 10:30:00", "Be kind."),
    "X-Request-ID: 9f2c11ab\nBe kind.": ("X-Request-ID: 9f2c11ab", "Be kind."),
    "当前时间：2026-11-27 10:30:00\n简洁。": ("当前时间：2026-11-27 10:30:00", "简洁。"),
}
STABLE = (
    "Today's date is 2026-11-27.",
    "Today's date is Friday, November 27, 2026 (formatted according to the user's locale).",
    "Knowledge cutoff: June 2024\nCurrent date: 2026-11-27\nCurrent working directory: /work",
    "If the current time is after 22:00, switch the lights off.",
    "Write the current time as 10:30, for example.",
    "The office opens at 10:30. The current user is Bob.",
    "Conversation started: Friday, November 27, 2026 10:30 AM",
    "The user ID: is required. Session ID: 4f1c22aa",
    "Quote the line `x-anthropic-billing-header: cch=1;` if you are asked about it.",
)
BILLING = "x-anthropic-billing-header: cc_version=2.1.100.7b4; cc_entrypoint=cli; cch=eb6c6;"


def asked(system: str, *more: Message) -> Conversation:
    first = Message("system", (TextPart(system),), raw=({"role": "system", "content": system},))
    return Conversation("chat", "m", (first, *(more or (HELLO,))))


@each("system", MOVED)
def test_text_that_changes_with_each_request_follows_the_last_message(system: str):
    moved, stays = MOVED[system]
    stabilized = stabilize(asked(system))
    assert (stabilized.volatile, stabilized.messages[0].text) == (moved, stays)
    assert stabilized.messages[0].raw == ({"role": "system", "content": stays},)
    assert stabilized.messages[1] is HELLO


@each("system", STABLE)
def test_other_text_keeps_its_position(system: str):
    conversation = asked(system)
    assert stabilize(conversation) is conversation


@each("separator", ["", "\n"])
def test_only_the_billing_line_is_dropped(separator: str):
    stabilized = stabilize(asked(f"{BILLING}{separator}You are an agent."))
    assert (stabilized.messages[0].text, stabilized.volatile) == ("You are an agent.", "")


def test_a_block_without_other_text_is_left_out_with_its_json():
    parts = (TextPart(BILLING), TextPart("You are an agent."))
    blocks = [{"type": "text", "text": part.text, "cache_control": {"type": "ephemeral"}} for part in parts]
    message = Message("system", parts, raw=({"system": blocks},))
    stabilized = stabilize(Conversation("messages", "m", (message, HELLO)))
    assert stabilized.messages[0].content == parts[1:]
    assert stabilized.messages[0].raw == ({"system": blocks[1:]},)
    alone = Message("system", parts[:1], raw=({"system": blocks[:1]},))
    assert stabilize(Conversation("messages", "m", (alone, HELLO))).messages == (HELLO,)


def test_only_the_leading_system_text_and_the_blocks_of_goose_are_examined():
    now = "Current time: 10:30"
    later = Message("system", (TextPart(now),))
    user = Message("user", (TextPart(f"<environment_details>\n# Current Time\n{now}\n</environment_details>"),))
    conversation = asked("Be brief.", user, Message("assistant", (TextPart("Yes."),)), later, HELLO)
    assert stabilize(conversation) is conversation
    info = f"<info-msg>\nIt is currently 2026-11-27 10:30:00\n{now}\n</info-msg>"
    result = Message("user", (TextPart(info),), results=(ToolResult("1", (TextPart("18"),)),))
    stabilized = stabilize(asked("Be brief.", result, Message("assistant", (TextPart("Yes."),)), HELLO))
    assert stabilized.volatile == info
    assert stabilized.messages[1].content == ()
    last = asked("Be brief.", Message("user", (TextPart(info),)))
    assert stabilize(last) is last


def test_nothing_moves_after_the_beginning_of_the_reply():
    begun = Message("assistant", (TextPart("It is"),))
    conversation = asked("Current time: 10:30:12", HELLO, begun)
    assert stabilize(conversation) is conversation


@pytest.mark.parametrize(
    "piece", ["current time 1:00 ", "<current_time>:00 ", "<info-msg>\nIt is currently ", "request id: ", ": 17 "]
)
def test_long_text_is_read_in_linear_time(piece: str):
    text = piece * 4_000
    message = Message("user", (TextPart(text),))
    stabilized = stabilize(asked(text, message, HELLO))
    assert len(json.dumps([part.text for one in stabilized.messages for part in one.content]) + stabilized.volatile)  # type: ignore[union-attr]
