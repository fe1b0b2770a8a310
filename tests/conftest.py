"""Settings that all tests share."""

import os
import platform
import signal
import warnings

# A shell that starts us in the background lets Ctrl-C be ignored, by us and so by every process that the
# tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# before numpy is loaded: on small matrices threads of the linear algebra library mostly wait for each other
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# and the instructions that all processors have since 2013: newer ones round otherwise, and estimates that are
# found in many steps then differ in their last digits
if platform.machine() in ("x86_64", "AMD64"):
    os.environ.setdefault("OPENBLAS_CORETYPE", "Haswell")
    os.environ.setdefault("NPY_DISABLE_CPU_FEATURES", "X86_V4,AVX512_ICL,AVX512_SPR")
with warnings.catch_warnings():
    warnings.simplefilter("ignore", ImportWarning)  # of a processor that has none of them anyway
    import numpy  # noqa: F401

from hypothesis import HealthCheck, settings

# the same examples every time, and no clock: a test passes or fails by what it checks, not by its luck
settings.register_profile(
    "fixed", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fixed")

# servers of the tests are on this machine, whatever proxy leads out of it
for name in ("no_proxy", "NO_PROXY"):
    os.environ[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1", "localhost")))

from keys import KEY  # noqa: E402 - after the settings above

os.environ["OPENAI_API_KEY"] = KEY
