"""ASGI helpers: types, request bodies with size and time limits, simple responses, and work off the event loop."""
