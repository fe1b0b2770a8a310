"""The same digits on every machine: one thread, and instructions that all processors have since 2013.

Import this before numpy is loaded. Newer instructions round otherwise, and estimates that are found in many
steps then differ in their last digits. On small matrices, threads of the linear algebra library mostly wait
for each other.
"""

import os
import platform
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
if platform.machine() in ("x86_64", "AMD64"):
    os.environ.setdefault("OPENBLAS_CORETYPE", "Haswell")
    os.environ.setdefault("NPY_DISABLE_CPU_FEATURES", "X86_V4,AVX512_ICL,AVX512_SPR")
with warnings.catch_warnings():
    warnings.simplefilter("ignore", ImportWarning)  # of a processor that has none of them anyway
    import numpy  # noqa: F401
