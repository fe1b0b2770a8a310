"""Models that are known: simulated, recorded, replayed over HTTP, and misbehaving on purpose."""
