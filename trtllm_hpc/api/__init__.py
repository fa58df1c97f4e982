"""The Python API, whose public names ``trtllm_hpc`` exports and imports on first use.

The command line calls the same functions, so they import their modules late, when they are called.
"""
