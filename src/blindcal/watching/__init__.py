"""Watching a model in production: anchors, queries and alarms."""
