"""Protocols spoken by clients and upstreams. Each protocol is a package, and all packages define the same names.

`read_request` and `ReplyWriter` face the client; `write_request` and `ReplyReader` face the upstream. Protocols never
import each other; shared code is in `shared` and in the modules alongside the packages.
"""
