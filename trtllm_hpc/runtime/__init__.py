"""Code that runs inside the job.

Standard library only, Python 3.10+: it travels as one zipapp, with :mod:`trtllm_hpc.paths`, to where this
package is not installed. ``mpi4py`` is imported by the preflight alone, which never starts a server.
"""
