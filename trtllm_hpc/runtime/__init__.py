"""Code that runs inside the job.

Standard library only, Python 3.10+: this code and :mod:`trtllm_hpc.paths` travel in one zipapp to nodes and
containers where the package is not installed. Only the preflight and the ranks' part of ``doctor --on-nodes``
import ``mpi4py``; neither starts a server.
"""
