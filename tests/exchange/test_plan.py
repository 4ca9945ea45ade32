"""Plans: how the upstream is asked, and the features that are left out once it has declined a request."""

from typing import Any

import attrs
import pytest

from streamtool.exchange.call_forcing import CallForcing
from streamtool.exchange.interfaces import Capabilities
from streamtool.exchange.plan import Known, Plan, Refusal, first_plan, known_of, next_plan
from streamtool.exchange.received import Received, receive
from streamtool.exchange.request import with_forcing
from streamtool.policy import FAILURES, Effect, EndOfReply, Failure, Outcome, RejectedRequest, register
from streamtool.protocols.registry import client_protocol
from streamtool.protocols.shared import wire
from streamtool.settings import Settings

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
NO_USAGE = "unknown parameter: stream_options"
NO_TOOLS = "this model does not support tools"
NO_SCHEMA = "response_format is not supported"
BAD_SCHEMA = "invalid json schema"


class Nothing:
    """Capabilities of an upstream that lacks nothing. It must not be taught anything by a pure function."""

    def lacks(self, client: str, upstream: str | None, model: str, ability: str, /) -> bool:
        return False

    lacked_here = lacks

    def learn(self, *_: object) -> None:
        raise AssertionError("a plan has learnt something")

    forget = learn


def nothing_lacks(_: str) -> bool:
    return False


def planned(
    capabilities: Capabilities | None = None, client: str = "chat", body: dict[str, Any] | None = None, **options: Any
) -> tuple[Received, Plan]:
    settings = Settings(**options)
    given = {"model": "m", "messages": [{"role": "user", "content": "Go."}], "tools": [TOOL], **(body or {})}
    protocol = client_protocol(client, "/v1/chat/completions")
    received = receive(settings, protocol, wire.encode(given), [(b"Authorization", b"Bearer k")])
    received, plan = first_plan(received, settings, protocol, capabilities=capabilities)
    known = known_of(received, plan.model, capabilities)
    return received, with_forcing(plan, received, nothing_lacks if known is None else known.lacks)


def following(plan: Plan, received: Received, message: str, status: int = 400, *, known: bool = True) -> Plan | None:
    store = known_of(received, plan.model, Nothing()) if known else None
    return next_plan(plan, Refusal(status, message, received.conversation, 100), store)


@pytest.mark.parametrize(
    ("options", "body", "plan"),
    [
        ({}, {}, ("emulate", False, True, True, False)),
        ({"mode": "native"}, {}, ("native", True, False, False, True)),
        ({"mode": "rescue"}, {}, ("rescue", True, False, True, False)),
        ({"mode": "auto"}, {}, ("native", True, False, True, False)),
        ({}, {"tools": []}, ("passthrough", False, False, False, True)),
        ({"app_protocol": "messages"}, {"tools": []}, ("translate", False, False, False, False)),
        ({"app_protocol": "messages", "mode": "native"}, {}, ("native", True, False, False, False)),
    ],
)
def test_the_first_plan_follows_the_mode(options: Any, body: Any, plan: tuple[Any, ...]):
    _, found = planned(body=body, **options)
    assert (found.mode, found.native, found.emulates, found.reads, found.passthrough) == plan


FORCED = {"tool_choice": "required"}
UNSTREAMED: dict[str, Any] = {"stream": False}
TABLE = [
    # settings, request, error; then the effect, what is learnt, and the fields that change
    ({}, UNSTREAMED, NO_USAGE, Effect.WITHOUT_USAGE, "usage", {"asks_usage": False}),
    ({"mode": "auto"}, {}, NO_TOOLS, Effect.TOOLS_AS_TEXT, "tools",
     {"native": False, "emulates": True, "mode": "emulate"}),
    ({"mode": "auto"}, {"messages": [{"role": "user", "content": NO_TOOLS}]}, NO_TOOLS, Effect.TOOLS_AS_TEXT, "",
     {"native": False, "emulates": True, "mode": "emulate"}),
    ({"app_forcing": "schema", "app_protocol": "chat"}, FORCED, NO_SCHEMA, Effect.FORCING_LESS, "schema",
     {"forcing": {"declined": {"schema"}, "doubted": ""}}),
    ({"app_forcing": "schema", "app_protocol": "chat"}, {**FORCED, "user": NO_SCHEMA}, NO_SCHEMA, Effect.FORCING_LESS,
     "", {"forcing": {"declined": {"schema"}, "doubted": ""}}),
    ({"app_forcing": "schema", "app_protocol": "chat"}, FORCED, BAD_SCHEMA, Effect.FORCING_LESS, "KEY",
     {"forcing": {"declined": {"KEY"}, "doubted": ""}}),
    ({"app_forcing": "schema", "app_protocol": "chat"}, FORCED, "no", Effect.FORCING_LESS, "KEY",
     {"forcing": {"declined": {"schema"}, "doubted": "KEY"}}),
]  # fmt: skip


@pytest.mark.parametrize(("options", "body", "message", "effect", "learnt", "changed"), TABLE)
def test_a_declined_request_is_followed_by_a_plan_without_what_was_declined(
    *, options: Any, body: Any, message: str, effect: Effect, learnt: str, changed: dict[str, Any]
):
    received, plan = planned(body=body, **options)
    before = attrs.asdict(plan, recurse=False)
    found = following(plan, received, message)
    assert found is not None
    assert found.reason is not None
    assert found.reason.failure.effect is effect

    def named(words: Any) -> Any:  # the word for a constraint ends with its digest
        return {"KEY" if " " in word else word for word in words}

    assert named({found.learnt}) == {learnt}
    fields = {name: value for name, value in changed.items() if name != "forcing"}
    if "forcing" in changed:
        declined, doubted = changed["forcing"]["declined"], changed["forcing"]["doubted"]
        assert (named(found.forcing.declined), named({found.forcing.doubted})) == (declined, {doubted})
        fields["forcing"] = found.forcing
    expected = {**fields, "reason": found.reason, "learnt": found.learnt}
    assert found == attrs.evolve(plan, **expected)
    assert attrs.asdict(plan, recurse=False) == before


def test_every_failure_of_a_request_is_in_the_table():
    reached: set[str] = set()
    for options, body, message, *_ in TABLE:
        received, plan = planned(body=body, **options)
        found = following(plan, received, message)
        assert found is not None
        assert found.reason is not None
        reached.add(found.reason.failure.cause)
    rows = [row for row in FAILURES if row.on is RejectedRequest]
    assert reached == {row.cause for row in rows}
    assert all(row.effect is not Effect.NONE for row in rows)


@pytest.mark.parametrize(
    ("options", "body", "message", "status", "known"),
    [
        ({}, {}, "the model is overloaded", 503, True),
        ({}, {"stream": True}, NO_USAGE, 400, True),  # the client's own field, if it sent it
        ({}, UNSTREAMED, NO_USAGE, 400, False),  # it could not be remembered
        ({"mode": "native"}, {}, NO_TOOLS, 400, True),
        ({"mode": "rescue"}, {}, NO_TOOLS, 400, True),
        ({}, {}, NO_TOOLS, 400, True),
        ({"app_forcing": "schema", "app_protocol": "chat"}, FORCED, "no such model", 404, True),
        ({"app_forcing": "schema", "app_protocol": "chat"}, FORCED, NO_SCHEMA, 429, True),
    ],
)
def test_other_errors_are_final(options: Any, body: Any, message: str, status: int, known: bool):
    received, plan = planned(body=body, **options)
    assert following(plan, received, message, status, known=known) is None


def test_a_constraint_that_was_declined_is_replaced_by_a_weaker_one_then_by_words():
    parameters = {"type": "object", "properties": {"a": {"type": "string", "pattern": "x+"}}, "required": ["a"]}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    received, plan = planned(body={**FORCED, "tools": [tool]}, app_forcing="schema", app_protocol="chat")
    constraints = [plan.forcing.current]
    for _ in range(2):
        found = following(plan, received, BAD_SCHEMA)
        assert found is not None
        plan = with_forcing(found, received, nothing_lacks)
        constraints.append(plan.forcing.current)
    strict, weak, none = constraints
    assert strict is not None
    assert weak is not None
    assert strict.value != weak.value
    assert (none, plan.forcing.word) == (None, "prompt")
    assert following(plan, received, BAD_SCHEMA) is None


def test_a_registered_failure_without_an_effect_repeats_the_request(monkeypatch: pytest.MonkeyPatch):
    row = Failure[RejectedRequest](
        "busy",
        on=RejectedRequest,
        detect=lambda refused: refused.message if refused.status == 503 else None,
        when="the upstream is busy",
        outcome=Outcome.RETRIED,
    )
    monkeypatch.setattr("streamtool.policy.failures.FAILURES", [])
    register(row)
    received, plan = planned(mode="native")
    found = following(plan, received, "busy", 503)
    assert found is not None
    assert attrs.evolve(found, reason=None) == plan


def test_only_requests_have_effects():
    row = Failure[EndOfReply](
        "odd",
        on=EndOfReply,
        detect=lambda _: None,
        when="never",
        outcome=Outcome.RETRIED,
        effect=Effect.TOOLS_AS_TEXT,
        corrections=("Again.",),
    )
    with pytest.raises(ValueError, match="only a failure on RejectedRequest"):
        register(row)


def test_plans_and_requests_are_frozen():
    received, plan = planned()
    for frozen in (
        received,
        plan,
        CallForcing(),
        Refusal(400, "", received.conversation),
        Known(Nothing(), "", "", ""),
    ):
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            frozen.learnt = "x"  # type: ignore[union-attr]
