"""The shells that move bytes: ASGI middleware, upstreams over HTTP, httpx transports."""
