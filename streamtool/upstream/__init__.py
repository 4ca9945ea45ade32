"""HTTP upstreams: connections, failover, health checks, and the data that upstreams expose about their models."""
