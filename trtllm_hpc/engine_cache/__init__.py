"""The engine cache as the login node uses it: look an engine up, list, verify and prune.

What the job needs, keys, entries and the build itself, is in :mod:`trtllm_hpc.runtime.engine_cache`.
"""
