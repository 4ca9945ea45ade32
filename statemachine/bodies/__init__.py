"""The ways in which arguments are written.

`read(machine, …)` is a generator over the text: it names the call, commits it, emits its arguments, and returns
at its end, before the closers. The other direction is in `statemachine/writing`.

    name          where the name stands when the body does not carry it; then its body
    json_object   the arguments as one JSON object
    envelope      JSON that carries name and arguments
    parameters    marked keys and raw values, typed by the tool's schema (XML and key–value are one); what a value is
                  and where it ends in `raw_value`, values made of elements in `elements`, their markers in
                  `parameter_markers`
    expression    names and bracketed arguments, as Python and others write a call
    message       a header decides: reasoning, text, or a call
"""
