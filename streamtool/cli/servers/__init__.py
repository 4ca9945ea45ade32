"""Servers that can run the proxy, each imported on demand."""
