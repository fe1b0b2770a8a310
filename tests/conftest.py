"""Settings that all tests share."""

import os

# before numpy is loaded: on small matrices threads of the linear algebra library mostly wait for each other
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from hypothesis import settings

# the same examples every time, and no clock: a test passes or fails by what it checks, not by its luck
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")
