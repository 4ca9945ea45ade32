"""The servers that can run the proxy. Each is loaded when it is asked for."""
