"""One client request and its reply, attempts included; bytes in, bytes out, no I/O. `exchange` tells how."""

from streamtool.exchange.encoding import Inflate, decode_body
from streamtool.exchange.exchange import Exchange
from streamtool.exchange.interfaces import (
    ClientProtocol,
    Headers,
    Memory,
    Record,
    ResponseHead,
    UpstreamProtocol,
    UpstreamRequest,
)
from streamtool.exchange.listener import ExchangeListener, ParserOptions
from streamtool.exchange.wires import CLIENTS, UPSTREAMS, client_protocol, upstream_protocol_for

__all__ = [
    "CLIENTS",
    "UPSTREAMS",
    "ClientProtocol",
    "Exchange",
    "ExchangeListener",
    "Headers",
    "Inflate",
    "Memory",
    "ParserOptions",
    "Record",
    "ResponseHead",
    "UpstreamProtocol",
    "UpstreamRequest",
    "client_protocol",
    "decode_body",
    "upstream_protocol_for",
]
