"""The stories: what is served, and on how many nodes and GPUs."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import Any

from benchmarks.story.figures import Settings

STREAMS = 8
"""Streams beside which long prompts arrive."""


@dataclass(frozen=True)
class Story:
    """One way to serve the model."""

    name: str
    title: str
    tensor_parallel: int
    nodes: int
    instances: int = 1
    """Several are behind a door."""

    @property
    def gpus_per_node(self) -> int:
        """GPUs of each node, one for each rank on it."""
        return self.instances * self.tensor_parallel // self.nodes

    @property
    def can_be_told(self) -> bool:
        """Whether this machine has the program for the door, if there is one."""
        return self.instances == 1 or shutil.which("haproxy") is not None

    def job_file(self, settings: Settings) -> str:
        """The job file: the server alone, which serves until it is cancelled."""
        longest = max(settings.input_tokens, settings.long_prompt)
        door = {"instances": self.instances} if self.instances > 1 else {"door": "none"}
        sections: dict[str, Any] = {
            "name": self.name,
            "model": {"synthetic": settings.model},
            "engine": {
                "backend": "reference",
                "tensor_parallel": self.tensor_parallel,
                "dtype": settings.dtype,
                "max_batch_size": max(STREAMS + 1, *settings.concurrency),
                "max_input_len": longest,
                "max_seq_len": longest + settings.output_tokens,
            },
            "repository": {"decoupled": True},
            "serve": {"nodes": self.nodes, "time_limit_minutes": 30, **door},
            "companion": {"enabled": False},
        }
        # JSON values are YAML.
        return "".join(f"{key}: {json.dumps(value)}\n" for key, value in sections.items())


STORIES = {
    story.name: story
    for story in (
        Story("tp1", "one GPU", tensor_parallel=1, nodes=1),
        Story("tp2", "two GPUs of one node", tensor_parallel=2, nodes=1),
        Story("tp2-two-nodes", "two nodes of one GPU each", tensor_parallel=2, nodes=2),
        Story("two-instances", "two GPUs, an instance each", tensor_parallel=1, nodes=1, instances=2),
    )
}
"""All stories by name, in the order in which they are told."""
