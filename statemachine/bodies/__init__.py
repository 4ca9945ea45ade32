"""The ways in which arguments are written, each with `read` and `write`.

`read(parser, …)` is a generator over the parser's text: it names the call, commits it, emits its arguments and returns
at its end, before the closers. `write` is the other direction.

    json_object   the arguments as one JSON object, after a head
    envelope      JSON that carries name and arguments
    parameters    marked keys and raw values, typed by the tool's schema (XML and key–value are one)
"""
