"""One client request and its reply, including all attempts: bytes in, bytes out, no I/O. See `exchange`."""
