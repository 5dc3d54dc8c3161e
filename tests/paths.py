"""Where tests find the repository and the real data beside it."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
SHARED_DATA = ROOT.parent / "shared" / "data"
"""Absent in most clones: tests that need it skip."""

SHARED_FACTS = ROOT.parent / "shared" / "facts"
"""Values that the papers publish, a document each. Absent in most clones, too."""
