"""Writers for a call's arguments, one for each kind of body; `statemachine.writing.writer` adds the markers of the
call.
"""
