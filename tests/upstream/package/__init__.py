"""Stand-ins of packages in NVIDIA's images, to be found by ``PYTHONPATH``."""
