"""HTTP upstreams: connections, failover, health checks, and what they report about their models."""
