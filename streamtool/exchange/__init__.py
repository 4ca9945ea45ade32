"""One client request and its reply, attempts included; bytes in, bytes out, no I/O. `exchange` tells how."""

from streamtool.exchange.encoding import Inflate, decode_body
from streamtool.exchange.exchange import Exchange
from streamtool.exchange.interfaces import (
    MOMENT,
    Memory,
    Record,
    ResponseHead,
    Services,
    Templates,
    Tokenizers,
    UpstreamRequest,
)
from streamtool.exchange.listener import ExchangeListener, Fed, ObservedParser, ParserOptions

__all__ = [
    "MOMENT",
    "Exchange",
    "ExchangeListener",
    "Fed",
    "Inflate",
    "Memory",
    "ObservedParser",
    "ParserOptions",
    "Record",
    "ResponseHead",
    "Services",
    "Templates",
    "Tokenizers",
    "UpstreamRequest",
    "decode_body",
]
