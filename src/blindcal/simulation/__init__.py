"""Known models: simulated, recorded, replayed over HTTP, and misbehaving on purpose."""
