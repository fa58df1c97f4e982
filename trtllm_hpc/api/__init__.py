"""The package from Python. Its public names are those of ``trtllm_hpc`` itself, which imports them when used.

The command line calls the same functions, so these modules import what a call needs when it is called.
"""
