"""A watch told to others: a webhook, Prometheus and OpenTelemetry."""
