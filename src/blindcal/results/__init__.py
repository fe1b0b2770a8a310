"""Finished runs: read, compared, checked, merged and deployed."""
