"""For every test: no deadline on examples (nothing here is a timed test), blobs to replay."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("checks", deadline=None, print_blob=True)
settings.load_profile("checks")
