"""What a reply is made of; each file reads one thing.

    reply       the whole: the state says what is next
    text        text in which openers are looked for
    lines       what counts at the start of a line: labels, fences, block quotes
    fences      code fences
    objects     JSON objects that are no call
    reasoning   reasoning, and messages that are text and nothing else
    call        a call, from its opener to the end of its body; the bodies are in `statemachine/bodies`
    closers     what closes a call, what implies its end, and what follows it

Each function takes the `Machine`, reads what stands at its reader, and says by the frames what is open afterwards.
"""
