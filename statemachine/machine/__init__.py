"""The state machine: the table of its states, the stack of frames, and the life cycle of a call."""
