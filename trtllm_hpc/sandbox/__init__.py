"""A real Slurm cluster on one machine, for tests and for trying job files.

:class:`Sandbox` is the whole interface::

    sandbox = Sandbox("try")
    sandbox.up(nodes=2, gpus_per_node=4)
    subprocess.run(["sinfo"], env={**os.environ, **sandbox.environment()})
    sandbox.nodes[0].run(["ls", "/dev/shm"])
    sandbox.down()
"""

from __future__ import annotations

from trtllm_hpc.sandbox.cluster import NodeStatus, Status
from trtllm_hpc.sandbox.hosts import Shape
from trtllm_hpc.sandbox.nodes import Node
from trtllm_hpc.sandbox.processes import Process
from trtllm_hpc.sandbox.sandbox import Sandbox

__all__ = ["Node", "NodeStatus", "Process", "Sandbox", "Shape", "Status"]
