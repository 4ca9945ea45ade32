"""Grammar of a reply; each module reads one kind of construct.

    reply       the whole reply: dispatch by state, failures, the end
    text        text that is searched for openers
    lines       markers that are recognized only at the start of a line: labels, fences, block quotes
    fences      code fences
    objects     JSON objects that are not calls
    reasoning   reasoning, and messages that contain nothing but text
    call        a call, from its opener to the end of its body; the bodies are in `statemachine/bodies`
    closers     closers in text, and the text after a call or a wrapper
    left_over   closers that were never opened, at the end of a reply
    saying      visible text, and the scanner that reads it

Each function takes the `Machine`, reads from the machine's reader, and records in the machine's frames which constructs
are still open. A function that returns True has changed the state: its caller returns too, and `reply.read` dispatches
again.
"""
