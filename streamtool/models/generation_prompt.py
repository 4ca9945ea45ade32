"""Detection of reasoning that a chat template opens at the end of the prompt, so that the model continues inside it.

A template is a program, but it is not executed, since it may come from an untrusted server. Only its end is examined,
from the last occurrence of `add_generation_prompt`. That part consists of a few literals under conditions on variables
that a request rarely sets, so it is evaluated branch by branch. A condition is true, false or undecidable; if an
undecidable condition affects the result, reasoning is taken to be closed.

Ollama's templates are written in Go's template language, and their conditions examine the messages. For these
templates, the last literal decides, unless the template supports thinking: in that case, Ollama itself separates the
reasoning from the reply.
"""

import ast
import re
from collections.abc import Iterable, Mapping

from attrs import define, field

from statemachine.formats import FORMATS, REASONING

OPENERS = tuple(
    sorted(
        {
            section.open.strip()
            for section in (*REASONING, *(section for form in FORMATS.values() for section in form.sections))
            if not section.text and "{" not in section.open
        },
        key=lambda opener: (-len(opener), opener),
    )
)
"""Reasoning openers, longest first."""
BY_MACRO: Mapping[str, str] = {"open_tag('think' if thinking": "<|open|>think<|sep|>"}
"""Macro calls that write an opener without a literal (Kimi K3), and the openers that they write."""
THINKS = ("enable_thinking", "thinking")
"""Variables that request reasoning. A template that does not set them treats them as false."""

TemplateValue = str | bool | None

_GENERATION_FLAG = "add_generation_prompt"
_MAX_ENDING = 2000
"""Maximum length of the part that is examined at the end of a template."""
_QUOTED = r"'(?:[^'\\]|\\.)*+'|\"(?:[^\"\\]|\\.)*+\""
_NODE = re.compile(r"\{%[-+]?\s*(\w+)(.*?)[-+]?%\}|\{\{[-+]?(.*?)[-+]?\}\}|\{#.*?#\}|([^{]++|\{)", re.DOTALL)
_PIECE = re.compile(rf"({_QUOTED})|(\w++)", re.DOTALL)
_CHOICE = re.compile(r"(.*?)\sif\s(.*)\selse\s(.*)", re.DOTALL)
_SET = re.compile(r"\{%[-+]?\s{0,8}set\s{1,8}(\w{1,64})\s{0,8}=\s{0,8}([^%]{0,200}?)\s{0,8}[-+]?%\}")
_DEFAULT = re.compile(rf"(?:.*\belse\s+|.*\bdefault\(|)(\w+|{_QUOTED})\)?", re.DOTALL)
_NAMESPACE_VARIABLE = re.compile(r"[(,]\s*(\w+)\s*=\s*(true|false)\b", re.IGNORECASE)
"""Matches a namespace variable and its initial value."""
_OPENING = re.compile("|".join(map(re.escape, OPENERS)))
_GO_THINKS = re.compile(r"\.(?:Is)?Think")
_GO_ENDS = re.compile(r"\s*(?:\{\{-?\s*end\s*-?\}\}\s*)*\Z")
_WORDS: Mapping[str, TemplateValue] = {"true": True, "false": False, "none": None}


def open_reasoning(template: str, *, thinking: bool | None = None) -> str:
    """Return the reasoning opener that the prompt leaves unclosed, such as `<think>`, or "" if none is known.

    `thinking` is the request's setting for reasoning, or None if it has no such setting. If it is False, no reasoning
    is open.
    """
    if thinking is False:
        return ""
    if "{%" not in template:
        return open_reasoning_in_go(template)
    start = template.rfind(_GENERATION_FLAG) + len(_GENERATION_FLAG)
    if start < len(_GENERATION_FLAG):
        return ""
    end = template[start : start + _MAX_ENDING]
    for macro, opener in BY_MACRO.items():
        if macro in end:
            return opener
    return last_opener(EndingEvaluator(template_variables(template[:start], thinking)).read("{% if true" + end))


def open_reasoning_in_go(template: str) -> str:
    """Return the reasoning opener that a template in Go's template language leaves unclosed, or "" if none is known."""
    if _GO_THINKS.search(template):
        return ""
    return last_opener(_GO_ENDS.sub("", template[-_MAX_ENDING:]))


def last_opener(prompt: str) -> str:
    """Return the reasoning opener at the end of a prompt, or "" if the prompt does not end with one."""
    text = prompt.rstrip()
    return next((opener for opener in OPENERS if text.endswith(opener)), "")


def template_variables(template: str, thinking: bool | None) -> dict[str, TemplateValue]:
    """Return the variables that the template itself sets, each with its first decidable value. The request's setting
    for reasoning overrides them.
    """
    found: dict[str, TemplateValue] = {}
    for name, word in _NAMESPACE_VARIABLE.findall(template):
        found.setdefault(name, literal_value(word))
    for name, expression in _SET.findall(template):
        value = _DEFAULT.fullmatch(expression)
        if value is not None and name not in found and (value[1].lower() in _WORDS or value[1][0] in "'\""):
            found[name] = literal_value(value[1])
    return found if thinking is None else {**found, **dict.fromkeys(THINKS, thinking)}


def literal_value(word: str) -> TemplateValue:
    """Return the value of a literal, or None for `none` and for anything that is not a literal."""
    if word[0] not in "'\"":
        return _WORDS.get(word.lower())
    try:
        return str(ast.literal_eval(word.replace("\n", "\\n")))
    except (SyntaxError, ValueError):
        return None


@define
class EndingEvaluator:
    """An evaluator for the end of a template; it works branch by branch."""

    variables: Mapping[str, TemplateValue]
    branches: list[tuple[bool | None, bool | None]] = field(factory=list)
    """For each open condition: whether the current branch is taken, and whether the current or an earlier branch is."""

    def read(self, template: str) -> str:
        """Return the text that the template writes before its first condition closes, or "" if that is undecidable."""
        written: list[str] = []
        for node in _NODE.finditer(template):
            word, rest, expression, text = node.groups()
            if word is not None:
                self._statement(word, rest.strip())
                if not self.branches:
                    break
            elif (taken := self._taken()) is None and _OPENING.search(node[0]):
                return ""
            elif taken:
                written.append(text.strip() if text is not None else self._text_of(expression or ""))
        return "".join(written)

    def _taken(self) -> bool | None:
        """Return whether the current branch is taken, or None if that is undecidable."""
        return all_of([taken for taken, _ in self.branches])

    def _statement(self, word: str, rest: str) -> None:
        """Process a statement that opens, changes or closes a branch. The body of a loop is treated as undecidable."""
        if word in ("if", "for", "macro"):
            holds = self._holds(rest) if word == "if" else None
            self.branches.append((holds, holds))
        elif word in ("elif", "else") and self.branches:
            _, before = self.branches.pop()
            holds = self._holds(rest) if word == "elif" else True
            self.branches.append((all_of([negate(before), holds]), negate(all_of(map(negate, (before, holds))))))
        elif word in ("endif", "endfor", "endmacro") and self.branches:
            self.branches.pop()

    def _holds(self, condition: str) -> bool | None:
        """Return whether a condition holds, or None if that is undecidable."""
        sides = condition.split(" or ")
        if len(sides) > 1:
            return negate(all_of([negate(self._holds(side)) for side in sides]))
        return all_of([self._term_holds(term.strip(" ()\n")) for term in condition.split(" and ")])

    def _term_holds(self, term: str) -> bool | None:
        """Return whether a condition without `and` or `or` holds, or None if that is undecidable."""
        if term.startswith("not "):
            return negate(self._term_holds(term[4:].strip(" ()")))
        name, *test = term.split() or [""]
        name = name.rpartition(".")[2]
        known = name in self.variables
        match test:
            case ["is", "defined"] | ["is", "not", "undefined"]:
                return known
            case ["is", "undefined"] | ["is", "not", "defined"]:
                return not known
            case [] if name in _WORDS:
                return _WORDS[name] is True
            case [] if known or name in THINKS:
                return bool(self.variables.get(name))
            case ["is" | "==", word] if known or name in THINKS:
                return self.variables.get(name) == literal_value(word)
            case ["!=", "'assistant'" | '"assistant"']:  # the last message is never the assistant's
                return True
        return None

    def _text_of(self, expression: str) -> str:
        """Return the text that an expression writes, as far as its literals and variables determine it."""
        chosen = _CHOICE.match(expression)
        if chosen is not None:
            holds = self._holds(chosen[2].strip(" ()"))
            return "" if holds is None else self._text_of(chosen[1] if holds else chosen[3])
        values = [
            literal_value(quoted) if quoted else self.variables.get(name) for quoted, name in _PIECE.findall(expression)
        ]
        return "".join(value for value in values if isinstance(value, str))


def all_of(states: Iterable[bool | None]) -> bool | None:
    """Return whether all states are true, or None if that is undecidable."""
    found = set(states)
    return False if False in found else None if None in found else True


def negate(state: bool | None) -> bool | None:
    """Negate a state; None (undecidable) stays None."""
    return None if state is None else not state
