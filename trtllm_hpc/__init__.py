"""From one job file to a measured TensorRT-LLM server on a Slurm cluster.

Importing this package reads no file, starts no process and imports nothing
outside the standard library: the same package, cut down to ``paths`` and
``runtime``, travels into the job as a zipapp.
"""

__version__ = "0.1.0"
