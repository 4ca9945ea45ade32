"""One client request and its reply, including all attempts: bytes in, bytes out, no I/O. See `exchange`."""

from streamtool.exchange.encoding import decode_body, decoded_size
from streamtool.exchange.exchange import Exchange
from streamtool.exchange.inputs import RecordedExchange
from streamtool.exchange.interfaces import MOMENT, NearCall, Record, Services, UpstreamRequest
from streamtool.exchange.listener import ExchangeListener, FedText, ObservedParser, ParserOptions
from streamtool.exchange.near_calls import find_near_call, openers_pattern
from streamtool.exchange.response_headers import VERDICT_HEADER
from streamtool.exchange.upstream_response import too_large

__all__ = [
    "MOMENT",
    "VERDICT_HEADER",
    "Exchange",
    "ExchangeListener",
    "FedText",
    "NearCall",
    "ObservedParser",
    "ParserOptions",
    "Record",
    "RecordedExchange",
    "Services",
    "UpstreamRequest",
    "decode_body",
    "decoded_size",
    "find_near_call",
    "openers_pattern",
    "too_large",
]
