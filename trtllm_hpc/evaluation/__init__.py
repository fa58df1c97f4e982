"""Evaluate a model's answers with tasks of EleutherAI's ``lm-eval``, and judge the scores."""
