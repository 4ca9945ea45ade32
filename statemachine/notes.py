"""What is known of one JSON text while it is read: its depth, what was mended, what would be missing at its end."""

import re

from attrs import define, field

DEPTH = 128
WORD = 64
"""Characters of the longest word that is not a string."""

word = re.compile(r"[A-Za-z_$][\w$-]*+").match
WORDS = {
    "true": "true",
    "false": "false",
    "null": "null",
    "True": "true",
    "False": "false",
    "None": "null",
    "undefined": "null",
    "NaN": "null",
    "Infinity": "null",
}
"""Words that stand for JSON values, in JSON and in other languages."""


@define
class Notes:
    """What is known of one JSON text while it is read."""

    repairs: dict[str, None] = field(factory=dict)
    """Names of mends, each once, in order of first use."""
    stack: list[str] = field(factory=list)
    """Closers of what is open, outermost first."""
    quoted: bool = False
    """True inside a string."""
    cut: bool = False
    """True while a stop here would cut something (a string, a word, a number, a pair, a container without members):
    closers cannot mend that."""
    depth: int = DEPTH

    def mend(self, name: str) -> None:
        """Records a mend."""
        self.repairs[name] = None

    def missing(self) -> str | None:
        """The closers that would make the output whole if the text ended here; None if they would not."""
        return None if self.cut else "".join(reversed(self.stack))
