"""Observers of exchanges: the log, metrics, OpenTelemetry spans and recordings."""
