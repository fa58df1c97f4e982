"""What is asked: prompts and lengths, the same for the same seed."""
