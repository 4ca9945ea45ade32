"""An independent checker of strict JSON (RFC 8259) that arrives in pieces: is this a prefix of some JSON text?

Written from the grammar alone, one character at a time, and checked against `json` in `test_json_oracle.py`. It shares
no code with `statemachine.json.text`.
"""

WHITE = " \t\r\n"
DIGITS = "0123456789"
HEX = "0123456789abcdefABCDEF"
LITERALS = {"t": "true", "f": "false", "n": "null"}
AFTER_NUMBER = {
    # state: (allowed characters, next state)…
    "-": ((DIGITS[1:], "int"), ("0", "zero")),
    "zero": ((".", "."), ("eE", "e")),
    "int": ((DIGITS, "int"), (".", "."), ("eE", "e")),
    ".": ((DIGITS, "frac"),),
    "frac": ((DIGITS, "frac"), ("eE", "e")),
    "e": (("+-", "sign"), (DIGITS, "exp")),
    "sign": ((DIGITS, "exp"),),
    "exp": ((DIGITS, "exp"),),
}
WHOLE_NUMBER = frozenset(("zero", "int", "frac", "exp"))


class Json:
    """A reader of pieces.

    `ok` is false from the first character that is not allowed, `whole` is true when a value is complete.
    """

    def __init__(self) -> None:
        self.ok = True
        self.state = "value"
        self.stack: list[str] = []
        self.word = ""
        self.is_key = False

    def feed(self, text: str) -> bool:
        """Read a piece, and return whether everything so far is a prefix of JSON."""
        for char in text:
            self.ok = self.ok and self.step(char)
        return self.ok

    @property
    def whole(self) -> bool:
        """Whether everything so far is a complete JSON text."""
        return self.ok and not self.stack and (self.state == "after" or self.state in WHOLE_NUMBER)

    def step(self, char: str) -> bool:
        """Read a character, and return whether it is allowed here."""
        state = self.state
        if state == "string":
            if char == '"':
                self.state = "colon" if self.is_key else "after"
            elif char == "\\":
                self.state = "escape"
            return char >= " "
        if state == "escape":
            self.state = "hex0" if char == "u" else "string"
            return char in '"\\/bfnrtu'
        if state.startswith("hex"):
            self.state = "string" if state == "hex3" else f"hex{int(state[3]) + 1}"
            return char in HEX
        if state == "literal":
            good = bool(self.word) and char == self.word[0]
            self.word = self.word[1:]
            if not self.word:
                self.state = "after"
            return good
        if state in AFTER_NUMBER:
            for chars, following in AFTER_NUMBER[state]:
                if char in chars:
                    self.state = following
                    return True
            if state not in WHOLE_NUMBER:
                return False
            self.state = "after"
            return self.step(char)
        return True if char in WHITE else self.between(char)

    def between(self, char: str) -> bool:
        """Read a character between tokens."""
        match self.state, char:
            case (("value" | "first value"), '"'):
                self.state, self.is_key = "string", False
            case (("value" | "first value"), "{"):
                self.stack.append("}")
                self.state = "first key"
            case (("value" | "first value"), "["):
                self.stack.append("]")
                self.state = "first value"
            case (("value" | "first value"), ("t" | "f" | "n")):
                self.state, self.word = "literal", LITERALS[char][1:]
            case (("value" | "first value"), "-"):
                self.state = "-"
            case (("value" | "first value"), "0"):
                self.state = "zero"
            case (("value" | "first value"), _) if char in DIGITS:
                self.state = "int"
            case (("first key" | "key"), '"'):
                self.state, self.is_key = "string", True
            case "colon", ":":
                self.state = "value"
            case "after", "," if self.stack:
                self.state = "key" if self.stack[-1] == "}" else "value"
            case ("after", "}" | "]") | ("first key", "}") | ("first value", "]") if self.stack[-1:] == [char]:
                self.stack.pop()
                self.state = "after"
            case _:
                return False
        return True


def is_prefix(text: str) -> bool:
    """Return whether the text is a prefix of some JSON text."""
    return Json().feed(text)


def is_object(text: str) -> bool:
    """Return whether the text is exactly one JSON object."""
    judge = Json()
    return judge.feed(text) and judge.whole and text.lstrip().startswith("{")
