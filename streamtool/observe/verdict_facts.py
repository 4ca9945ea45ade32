"""The facts of a record in words: the parts of the sentences in `verdicts`."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from attrs import frozen

from statemachine.names import differs_in_one
from streamtool.core.errors import StreamtoolError, UpstreamError
from streamtool.exchange.record import NearCall, Record
from streamtool.observe.printable import loggable_message, printable

_NAMED: Final = 3
"""Maximum number of parts to list in a sentence."""


@frozen
class FailureWords:
    """The words for a failure of an attempt: a phrase that follows "the model", and the next step if it remains."""

    phrase: str
    step: str = "Require a call (`tool_choice`), or measure which format the model obeys: `streamtool eval`."
    refuses: bool = False
    """Whether the model refused to act."""


SEARCH: Final = "tool search"
"""Cause of an attempt that is repeated with the tools that the model searched for, which is not a failure."""
FORCE: Final = "Force the call: set `forcing` for the upstream."
OFFER: Final = 'Offer a tool with this name, or let the client handle the name: `unknown_tools = "deliver"`.'
CAUSES: Final[Mapping[str, FailureWords]] = {
    "tools denied": FailureWords("denied having tools", refuses=True),
    "environment denied": FailureWords("denied having access to files, commands or the network", refuses=True),
    SEARCH: FailureWords("searched for tools"),
    "too many searches": FailureWords("searched for tools too often", "Show more tools at once: raise `select_tools`."),
    "wrong tool": FailureWords("called another tool than the required one", FORCE),
    "unknown tool": FailureWords("called a tool that is not offered", OFFER),
    "malformed": FailureWords(
        "wrote a call that cannot be read", "Teach another format: `streamtool eval` measures them."
    ),
    "schema": FailureWords(
        "wrote arguments that do not match the tool's schema", "Simplify the schema, or set `forcing` for the upstream."
    ),
    "required call missing": FailureWords("left out the required call", FORCE),
    "call forbidden": FailureWords(
        "called a tool although none is allowed", 'Leave the tools out of requests with `tool_choice: "none"`.'
    ),
    "incomplete": FailureWords("wrote a call that was cut off", "Raise `max_tokens` in the request."),
    "empty": FailureWords("wrote nothing", "Check that the last message is not empty, and retry."),
    "answer": FailureWords(
        "wrote an answer in another form than the required one",
        'Simplify the schema of the answer, or let it pass: `answers = "pass"`.',
    ),
    "only reasoning": FailureWords("wrote only reasoning", "Raise `max_tokens`, or ask for less reasoning effort."),
    "announced but not called": FailureWords("announced a call without making it", refuses=True),
    "arguments": FailureWords("wrote arguments that do not match the tool's schema"),
    "quoted": FailureWords("repeated a call from a tool's output"),
    "refused": FailureWords("made a call that was not approved", "Approve the call, or change the task."),
    "protocol": FailureWords("wrote a reply in another form than the format's object"),
}
"""Cause of a failure (`policy.failures`) → its words."""
DECLINED: Final[Mapping[str, str]] = {
    "usage unsupported": "the field that asks for usage",
    "tools unsupported": "native tools",
    "forcing unsupported": "the method that forces a call",
    "forcing refused": "the constraint that forces a call",
}
"""Cause of a rejected request → the feature that the server declined."""
DISCARDS: Final[Mapping[str, str]] = {
    "malformed": "malformed markup",
    "rejected": "markup that is not a call",
    "cut_off": "a call that was cut off",
    "unknown": "unknown tool",
    "limit": "over a limit",
    "invented": "invented result",
    "invented result": "invented result",
    "invented_turn": "invented turn",
    "invented turn": "invented turn",
    "noise": "noise around a call",
    "incomplete": "a call that was cut off",
    "invalid": "invalid arguments",
    "forbidden": "a call that is not allowed",
    "tool search": "search for tools",
    "sent twice": "a call that was sent twice",
    "repeated call": "a repeated call",
    "reasoning": "reasoning",
}
"""Reason for discarding text → the words for it."""
HARMLESS: Final = frozenset(("tool search", "reasoning", "noise", "invented", "invented_turn", "sent twice"))
"""Reasons for discarding text that need no attention."""


class Facts:
    """The facts of a record, in words: the parts of the sentences. A template names them in braces."""

    def __init__(self, record: Record, *, contents: bool) -> None:
        self.record = record
        self.outcome = record.outcome
        self.contents = contents
        self.error: StreamtoolError | None = record.error
        self.near: NearCall | None = record.near

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    # --- errors

    @property
    def upstream_status(self) -> int:
        """The status of an error of the upstream, or 0."""
        return self.error.status if isinstance(self.error, UpstreamError) else 0

    @property
    def code(self) -> str:
        """The code of the error, or an empty string."""
        return (self.error.code if self.error is not None else "") or ""

    @property
    def status(self) -> int:
        """The status of the error."""
        return 0 if self.error is None else self.error.status

    @property
    def message(self) -> str:
        """The message of the error, as a clause without a period at the end."""
        if self.error is None:
            return ""
        return loggable_message(self.error, contents=self.contents).rstrip(". ")

    @property
    def why(self) -> str:
        """The message of the error after a colon, or nothing if the message is only its status and kind."""
        words = self.message
        return "" if words.startswith(f"{self.status} ") else f": {words}"

    @property
    def where(self) -> str:
        """The field of the request that the error is about, with `at` before it, or nothing."""
        param = None if self.error is None else self.error.param
        return "" if param is None else f" at {printable(param)}"

    # --- calls

    @property
    def calls(self) -> str:
        """The number of calls, at the beginning of a sentence."""
        return count_of(self.record.calls, "call")

    @property
    def formats(self) -> str:
        """The formats in which calls were found."""
        return _list([f"`{name}`" for name in self.record.formats])

    @property
    def taught(self) -> str:
        """The taught format."""
        return f"`{self.record.format}`"

    @property
    def format(self) -> str:
        """The first format in which a call was found."""
        return next(iter(self.record.formats), "")

    @property
    def differs(self) -> bool:
        """Whether calls were found in another format than the taught one."""
        record = self.record
        return bool(record.tool_prompt and record.formats and record.formats != (record.format,))

    @property
    def repairs(self) -> str:
        """The repairs."""
        return _list([name.replace("_", " ") for name in self.record.repairs])

    @property
    def how(self) -> str:
        """How the calls were written."""
        record = self.record
        found = f" in {self.formats}" if record.formats else ", made by the server" if record.mode != "emulate" else ""
        return f"{found}{f', forced by `{record.forced}`' if record.forced else ''}"

    # --- attempts

    @property
    def rejected(self) -> list[str]:
        """The failures that led to another request to the model, except searches for tools."""
        return [cause for cause in self.record.attempts if cause != SEARCH and cause not in DECLINED]

    @property
    def declined(self) -> str:
        """The features that the server declined."""
        return _list([DECLINED[cause] for cause in dict.fromkeys(self.record.attempts) if cause in DECLINED])

    @property
    def refusals(self) -> int:
        """The number of rejected attempts if all of them were refusals; 0 if any was not."""
        causes = self.rejected
        return len(causes) if all(cause in CAUSES and CAUSES[cause].refuses for cause in causes) else 0

    @property
    def times(self) -> str:
        """How often an attempt was rejected."""
        return _times(len(self.rejected))

    @property
    def causes(self) -> str:
        """The actions of the model that led to rejected attempts."""
        return _list([_phrase(cause) for cause in dict.fromkeys(self.rejected)])

    @property
    def attempts(self) -> str:
        """The number of attempts, for a failure of the last one."""
        count = len(self.rejected) + 1
        return "The model" if count == 1 else f"Even in attempt {count}, the model"

    @property
    def unmet(self) -> str:
        """The failure of the last attempt, as an action of the model."""
        return _phrase(self.record.unmet or "")

    @property
    def unmet_step(self) -> str:
        """The next step after the failure of the last attempt."""
        words, forced = CAUSES.get(self.record.unmet or ""), self.record.forced
        if words is None:
            return ""
        if words.step == FORCE and forced not in ("", "prompt"):
            return f"The server ignored the constraint (`{forced}`): `streamtool probe URL` shows which ones it honors."
        return words.step

    # --- limits

    @property
    def limit(self) -> str:
        """The limit that ended the reply."""
        record = self.record
        most, output = dict(record.options).get("max_tokens"), record.usage.output
        if most is not None and (not output or record.usage.estimated or output >= most):
            return f"the request's limit of {most:,.0f} tokens"
        return f"the server's limit of {output:,} tokens" if output else "a limit on tokens"

    @property
    def limit_step(self) -> str:
        """How to raise the limit that ended the reply."""
        most = dict(self.record.options).get("max_tokens")
        return "Raise `max_tokens` in the request." if most is not None else "Send `max_tokens`, or raise the server's."

    @property
    def resumed_step(self) -> str:
        """How to avoid the first interruption that was followed by a continuation."""
        match self.record.resumed[0].cause:
            case "upstream's own limit":
                return self.limit_step
            case "malformed call" | "endless repetition":
                return "If this repeats, use `forcing` if the server can constrain calls, or a larger model."
        return "Read the server's log."

    @property
    def read(self) -> str:
        """The number of tokens of the prompt that were read, out of those that it has at least."""
        cut = self.record.prompt_cut
        return "" if cut is None else f"{cut.read:,} of at least {cut.least:,} tokens were read"

    @property
    def fix(self) -> str:
        """The remedy for a prompt that was cut."""
        cut = self.record.prompt_cut
        return "" if cut is None else _sentence(cut.fix)

    @property
    def interruptions(self) -> str:
        """The interruptions that were followed by a continuation."""
        first, *others = self.record.resumed
        place = first.place if first.place in ("a call", "text") else f"`{printable(first.place)}`"
        how = {
            "upstream's own limit": "Cut by the server's limit"
            + (f" of {first.tokens:,} tokens" if first.tokens else ""),
            "upstream reported an error": "The server reported an error",
            "malformed call": "The call became unreadable",
            "endless repetition": "The model repeated itself",
        }.get(first.cause, "The server broke off")
        later = f", and {_times(len(others))} later" if others else ""
        return f"{how} inside {place} at character {first.character:,}{later}"

    # --- text

    @property
    def quoted(self) -> str:
        """The number of quotations."""
        count = sum(count for why, count in self.record.quoted if why != "repeated")
        return count_of(count, "call")

    @property
    def quotes(self) -> bool:
        """Whether calls were quotations, and therefore text."""
        return any(why != "repeated" for why, _ in self.record.quoted)

    @property
    def discards(self) -> str:
        """The characters that were discarded, by reason, except harmless ones."""
        summed: dict[str, int] = {}
        for why, count in self.record.discarded:
            if why not in HARMLESS:
                summed[DISCARDS.get(why, why)] = summed.get(DISCARDS.get(why, why), 0) + count
        return ", ".join(f"{count_of(count, 'character')} dropped: {why}" for why, count in summed.items())

    @property
    def dropped(self) -> str:
        """The parts of the request that could not be used."""
        notes = self.record.dropped
        more = len(notes) - _NAMED
        return ", ".join([*map(printable, notes[:_NAMED]), *([f"{more} more"] if more > 0 else [])])

    @property
    def warning(self) -> str:
        """The warning about many tools."""
        return printable(self.record.warning, 300)

    @property
    def seconds(self) -> str:
        """The duration."""
        return f"{self.record.seconds:.1f} s"

    @property
    def protocols(self) -> str:
        """The protocols of the client and the upstream."""
        return f"from {self.record.protocol} to {self.record.upstream_protocol}"

    # --- text that looks like a call

    def near_is(self, *causes: str) -> bool:
        """Return whether text looks like a call, and one of these causes is why it is not one."""
        return self.near is not None and self.near.cause in causes

    @property
    def at(self) -> str:
        """The position and, if contents are allowed, the text that looks like a call."""
        near = self.near
        if near is None:
            return ""
        shown = f"`{printable(near.text)}`" if self.contents else "text"
        return f"At character {near.character + 1:,}, {shown}"

    @property
    def near_format(self) -> str:
        """The format that text resembles."""
        return "" if self.near is None else f"`{self.near.format}`"

    @property
    def name(self) -> str:
        """The name in the text that looks like a call."""
        near = self.near
        return f"`{printable(near.name)}`" if near is not None and self.contents else "the name in it"

    @property
    def called_name(self) -> str:
        """The name that is not offered, after a colon, or nothing if it is unknown."""
        return f": {self.name}{self.nearest}" if self.near_is("name") and self.contents else ""

    @property
    def outcome_of_call(self) -> str:
        """The fate of a call to a tool that is not offered."""
        return "the reply was delivered as it is" if self.record.calls else "the client received it as text"

    @property
    def name_step(self) -> str:
        """The next step after a call to a tool that is not offered."""
        near = self.near
        if near is not None and near.tool and differs_in_one(near.name, near.tool):
            return 'Accept one wrong letter: `tool_names = "edit"`.'
        return OFFER

    @property
    def nearest(self) -> str:
        """The most similar tool, in parentheses, or nothing."""
        near = self.near
        return "" if near is None or not near.tool else f" (nearest: `{printable(near.tool)}`)"

    @property
    def and_name(self) -> str:
        """That the name is not offered either, or nothing if it is offered or none is known."""
        near = self.near
        return "" if near is None or near.tool in ("", near.name) else f", and {self.name} is not offered{self.nearest}"


def _phrase(cause: str) -> str:
    return CAUSES[cause].phrase if cause in CAUSES else f"failed ({printable(cause)})"


def _sentence(clause: str) -> str:
    return clause[:1].upper() + clause[1:].rstrip(".") + "."


def count_of(count: int, word: str) -> str:
    return f"One {word}" if count == 1 and word == "call" else f"{count:,} {word}{'' if count == 1 else 's'}"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _list(words: Iterable[str]) -> str:
    found = list(words)
    return " and ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)
