"""The table of causes, and the engine that finds them in logs.

``data/*.toml`` lists failures, the words with which logs show them, and advice.
"""
