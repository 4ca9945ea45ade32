"""The protocols that clients and upstreams speak: one module or package each, with the same names in all.

`read_request` and `ReplyWriter` face the client, `write_request` and `ReplyReader` face the upstream. Protocols never
import each other; what they share stands in the modules beside them.
"""
