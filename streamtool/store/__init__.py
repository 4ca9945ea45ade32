"""State that outlives a request: earlier replies, and the features that upstreams were found to lack."""
