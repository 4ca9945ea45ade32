"""The arguments of a call as the bodies write them; `statemachine.writer` puts the call around them."""
