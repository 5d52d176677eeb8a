"""For every test: no deadline on examples (nothing here is a timed test), blobs to replay."""

from __future__ import annotations

import signal

from hypothesis import settings

settings.register_profile("checks", deadline=None, print_blob=True)
settings.load_profile("checks")

# A run in the background of a script ignores Ctrl-C, and its children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
