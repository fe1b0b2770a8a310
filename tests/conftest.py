"""Settings that all tests share."""

from hypothesis import settings

# the same examples every time, and no clock: a test passes or fails by what it checks, not by its luck
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")
