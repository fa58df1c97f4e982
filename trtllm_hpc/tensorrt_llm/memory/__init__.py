"""The memory planner: what a model takes of each rank's GPU memory, and how many tokens fit beside it."""
