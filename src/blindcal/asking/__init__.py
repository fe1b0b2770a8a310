"""Putting a run's queries to an endpoint: what must be known first, how each is put, live or in batches."""
