"""Who learns of an exchange: the log, metrics, OpenTelemetry spans and recordings."""
