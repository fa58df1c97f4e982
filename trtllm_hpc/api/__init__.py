"""The Python interface. ``trtllm_hpc`` exports its public names and imports each when it is first used.

The command line calls the same functions. Functions import what they need only when they are called, so that
commands start fast.
"""
