"""Certificates: exact bounds at thresholds, and decisions by them."""
