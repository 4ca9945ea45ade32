"""One client request and its reply, attempts included; bytes in, bytes out, no I/O. `machine` tells how."""

from streamtool.exchange.encoding import Inflate, decode_body
from streamtool.exchange.machine import Exchange
from streamtool.exchange.shapes import Head, Headers, Record, UpstreamRequest, Wire

__all__ = ["Exchange", "Head", "Headers", "Inflate", "Record", "UpstreamRequest", "Wire", "decode_body"]
