"""What outlives an exchange: replies, tool sets, signatures, and what upstreams cannot do."""
