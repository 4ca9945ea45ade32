"""ASGI: types, request bodies within limits of size and time, simple responses, and work moved off the event loop."""
