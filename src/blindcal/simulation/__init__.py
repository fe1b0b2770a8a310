"""Known models: simulated, recorded, and replayed over HTTP."""
