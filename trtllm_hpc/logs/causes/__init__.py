"""The table of causes, and the engine that finds them in logs.

``data/*.toml`` says what breaks, in which words a log tells it, and what to do about it.
"""
