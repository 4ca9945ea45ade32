"""One client request and its reply, including all attempts: bytes in, bytes out, no I/O. See `exchange`."""

from streamtool.exchange.encoding import decode_body, decoded_size
from streamtool.exchange.exchange import Exchange
from streamtool.exchange.interfaces import MOMENT, Record, Services, UpstreamRequest
from streamtool.exchange.listener import ExchangeListener, FedText, ObservedParser, ParserOptions
from streamtool.exchange.upstream_response import too_large

__all__ = [
    "MOMENT",
    "Exchange",
    "ExchangeListener",
    "FedText",
    "ObservedParser",
    "ParserOptions",
    "Record",
    "Services",
    "UpstreamRequest",
    "decode_body",
    "decoded_size",
    "too_large",
]
