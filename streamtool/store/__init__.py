"""State that outlives a request: replies, and the features that upstreams were found to lack."""
