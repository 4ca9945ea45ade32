"""Checking a call's arguments against their schema, and mending what can only mean one thing."""
