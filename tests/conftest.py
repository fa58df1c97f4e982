"""For all tests."""

from __future__ import annotations

import signal

# A shell ignores Ctrl-C for what it starts in the background, and every child would inherit that: the
# tests that interrupt something would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Whoever ends the tests from outside (a time limit) wants no Slurm and no server left behind either.
signal.signal(signal.SIGTERM, signal.default_int_handler)
