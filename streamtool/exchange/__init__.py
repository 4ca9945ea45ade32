"""One client request and its reply, attempts included; bytes in, bytes out, no I/O. `machine` tells how."""

from streamtool.exchange.encoding import Inflate, decode_body
from streamtool.exchange.machine import Exchange
from streamtool.exchange.shapes import ClientWire, Head, Headers, Memory, Record, UpstreamRequest, UpstreamWire
from streamtool.exchange.traced import ParserOptions, Trace
from streamtool.exchange.wires import CLIENTS, UPSTREAMS, upstream_of, wire_of

__all__ = [
    "CLIENTS",
    "UPSTREAMS",
    "ClientWire",
    "Exchange",
    "Head",
    "Headers",
    "Inflate",
    "Memory",
    "ParserOptions",
    "Record",
    "Trace",
    "UpstreamRequest",
    "UpstreamWire",
    "decode_body",
    "upstream_of",
    "wire_of",
]
