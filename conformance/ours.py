"""streamtool's own parser as a plugin for `run.py`: an example of such a plugin."""

from statemachine import ArgumentsDelta, CallEnd, CallStart, Limits, Parser, ReasoningDelta, TextDelta


def read(pieces, tools, options):
    """Return the outcome for text given in pieces."""
    reason = options.pop("reason", None)
    if "limits" in options:
        options["limits"] = Limits(**options["limits"])
    parser = Parser(tools, **options)
    found = {"text": "", "reasoning": "", "calls": []}
    for event in [*(event for piece in pieces for event in parser.feed(piece)), *parser.close(reason)]:
        match event:
            case TextDelta(text=text):
                found["text"] += text
            case ReasoningDelta(text=text):
                found["reasoning"] += text
            case CallStart(name=name):
                found["calls"].append({"name": name, "arguments": "", "complete": False})
            case ArgumentsDelta(text=text):
                found["calls"][-1]["arguments"] += text
            case CallEnd(complete=complete):
                found["calls"][-1]["complete"] = complete
    return found
