"""Whether the model answers well: tasks of EleutherAI's ``lm-eval``, their scores, and the gate."""
