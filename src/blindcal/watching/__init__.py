"""Watching a stream: anchors, queries, looks and alarms."""
