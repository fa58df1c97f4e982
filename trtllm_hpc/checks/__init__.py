"""The checks of ``doctor``: what would fail in the queue, or an hour after it, found now."""
