"""A stand-in of upstream's C++ backend: its ways to spread a model over MPI's processes, without a model.

``server.py`` is the container's ``tritonserver``, ``model.py`` the backend ``tensorrtllm``, ``ranks.py`` what
each rank of a model does. The answer to a prompt is the prompt again and again; each rank computes only
its own tokens of it, so that an answer without a rank is wrong.
"""
