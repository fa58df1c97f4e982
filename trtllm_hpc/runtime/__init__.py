"""Code that runs inside the job.

Standard library only, Python 3.10+: it is shipped into the run folder as one zipapp (with
:mod:`trtllm_hpc.paths`) and runs where this package is not installed, e.g. in NVIDIA's container. ``mpi4py``
is imported by the preflight alone, which never starts a server.
"""
