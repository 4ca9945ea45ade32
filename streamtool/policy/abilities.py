"""What upstreams say when they cannot be given tools. A bare refusal is no proof: it may be about anything."""

import re
from typing import Final

_SAYS: Final = re.compile(
    r"does(?: not|n't) support (?:tools|tool[ -]us|tool[ -]call|function[ -]call)"  # Ollama, and others
    r"|tools param(?:eter)? requires --jinja"  # llama.cpp
    r"|requires? --enable-auto-tool-choice"  # vLLM
    r"|--tool-call-parser"  # vLLM, SGLang
    r"|no endpoints found that support (?:the )?(?:provided )?['\"`]?tool"  # OpenRouter
    r"|(?:tools?|functions?|tool[ -]use|tool[ -]calling|function[ -]calling) (?:is|are) not supported"
    r"|not support(?:ed)? (?:with|for) (?:this|the) model.{0,40}\btools?\b"
    r"|unknown (?:field|parameter|argument)[: ]+['\"`]?tools?\b"
    r"|unrecognized request argument[^:]*: ['\"`]?tools?\b",
    re.IGNORECASE,
)


def denies_tools(message: str) -> bool:
    """Whether an upstream's error says that it knows no tools."""
    return _SAYS.search(message[:4000]) is not None
