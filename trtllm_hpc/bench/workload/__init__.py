"""The requests that a benchmark sends: prompts and lengths, the same for the same seed."""
