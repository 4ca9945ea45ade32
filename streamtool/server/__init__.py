"""Serving a request: admission, budgets, the running exchange, and the client's connection."""
