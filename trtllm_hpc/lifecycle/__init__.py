"""The life of a run: submission, state, waiting, cancelling."""
