"""A pytest plugin for vLLM's own tests: replaces each tool parser by ours, and needs no network for tokenizers.

vLLM's tests name a parser by its class or by its name; both lead to ours. Most offer no tools, so without tools any
name is accepted. Where they stream, they do not signal the end of the text; the plugin does.
"""

import importlib
import pkgutil
import re
import sys
from collections import Counter
from pathlib import Path

import transformers
import vllm.tokenizers
import vllm.tool_parsers
from vllm.tool_parsers.abstract_tool_parser import ToolParser, ToolParserManager

from statemachine import Parser
from streamtool.adapters.vllm_plugin import StreamtoolToolParser

COUNTS = Counter()
FAILED: list[str] = []


class InTheirPlace(StreamtoolToolParser):
    """Our parser, for tests that offer no tools."""

    def _parser(self, request):
        return super()._parser(request) if self.tools or getattr(request, "tools", None) else Parser()


class Words:
    """A tokenizer that splits a text into tags, words, blanks and signs, and learns them as they appear."""

    is_fast = True
    eos_token_id = 0
    all_special_ids = (0,)
    all_special_tokens = ("<eos>",)
    _CUT = re.compile(r"<[^<>\s]{1,40}>|\[[A-Z_/]+\]|\w+|\s|.", re.DOTALL)

    def __init__(self):
        self._ids = {"<eos>": 0}

    def get_vocab(self):
        return self._ids

    vocab = property(get_vocab)

    def get_added_vocab(self):
        return {}

    def add_tokens(self, tokens):
        return len(tokens)

    def __len__(self):
        return len(self._ids)

    def tokenize(self, text, **_):
        tokens = self._CUT.findall(text)
        for token in tokens:
            if token not in self._ids:
                self._ids[token] = max(self._ids.values()) + 1
        return tokens

    def encode(self, text, **_):
        return [self._ids[token] for token in self.tokenize(text)]

    def convert_ids_to_tokens(self, ids, **_):
        tokens = {number: token for token, number in self._ids.items()}
        return [tokens[each] for each in ids]

    def convert_tokens_to_ids(self, tokens):
        return self.encode(tokens)[0] if isinstance(tokens, str) else [self.encode(token)[0] for token in tokens]

    def convert_tokens_to_string(self, tokens):
        return "".join(tokens)

    def decode(self, ids, **_):
        return "".join(self.convert_ids_to_tokens([ids] if isinstance(ids, int) else ids))


def replace_parsers():
    """Replace each tool parser class by ours, in its module and under its names."""
    for found in pkgutil.iter_modules(vllm.tool_parsers.__path__, "vllm.tool_parsers."):
        module = importlib.import_module(found.name)
        for name, theirs in list(vars(module).items()):
            own = isinstance(theirs, type) and theirs.__module__ == module.__name__ and theirs is not ToolParser
            if own and issubclass(theirs, ToolParser):
                setattr(module, name, type(name, (InTheirPlace,), {"__module__": module.__name__}))
    ToolParserManager.tool_parsers.clear()


def tell_the_end():
    """Make their helper that streams a text signal its end, as vLLM's server does."""
    utils = importlib.import_module("tests.tool_parsers.utils")
    streamed = utils.run_tool_extraction_streaming

    def to_the_end(tool_parser, *given, **named):
        rebuilt = streamed(tool_parser, *given, **named)
        last = tool_parser.finish_streaming()
        if last is not None:
            rebuilt.append_delta(last)
        return rebuilt

    utils.run_tool_extraction_streaming = to_the_end


def pytest_configure():
    words = lambda *_, **__: Words()  # noqa: E731
    vllm.tokenizers.get_tokenizer = words
    transformers.AutoTokenizer.from_pretrained = words
    replace_parsers()
    sys.path.insert(0, str(Path.cwd()))
    tell_the_end()


def pytest_runtest_logreport(report):
    if report.when != "call" and (report.when != "setup" or report.outcome == "passed"):
        return
    crash = getattr(report.longrepr, "reprcrash", None)
    message = (crash.message if crash else str(report.longrepr or "")).split("\n")[0]
    xpassed = message.startswith("[XPASS")  # their parser is known to fail it
    outcome = "xfailed" if hasattr(report, "wasxfail") and report.outcome == "skipped" else report.outcome
    COUNTS[report.nodeid.split("::")[0].rpartition("/")[2], "passed" if xpassed else outcome] += 1
    if outcome == "failed" and not xpassed:
        FAILED.append(f"{report.nodeid.rpartition('/')[2]}: {message[:120]}")


def pytest_terminal_summary(terminalreporter):
    for line in FAILED:
        terminalreporter.write_line(f"not as theirs: {line}")
    terminalreporter.write_line("\n| their tests | as theirs | of |\n|---|---|---|")
    for file in sorted({file for file, _ in COUNTS}):
        passed, failed = (COUNTS[file, outcome] for outcome in ("passed", "failed"))
        name = file.removeprefix("test_").removesuffix("_tool_parser.py")
        terminalreporter.write_line(f"| {name} | {passed} | {passed + failed} |")
    passed, failed = (sum(n for (_, of), n in COUNTS.items() if of == outcome) for outcome in ("passed", "failed"))
    terminalreporter.write_line(f"| all | {passed} | {passed + failed} |")
