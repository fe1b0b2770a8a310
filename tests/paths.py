"""Where the project and the recorded outputs of real models lie."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests" / "data"
SHARED = ROOT.parent / "shared"
"""Beside the project; tests that need it are skipped where it is absent."""
