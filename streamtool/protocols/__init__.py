"""Protocols spoken by clients and upstreams: one package per protocol, all with the same names.

`read_request` and `ReplyWriter` face the client; `write_request` and `ReplyReader` face the upstream. Protocols never
import each other; code that they share is in `shared` and in the modules next to the packages.
"""
