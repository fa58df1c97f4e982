"""The LoRA adapters of a benchmark: read before the load, and made known to every server before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trtllm_hpc.bench.load.loops import ClosedPlan
from trtllm_hpc.bench.load.messages import Target, encode_request, encode_weights
from trtllm_hpc.bench.load.run import run_load
from trtllm_hpc.bench.load.timing import Clock
from trtllm_hpc.bench.workload.request import Request
from trtllm_hpc.client.lora import read_adapter
from trtllm_hpc.config.benchmark import Workload
from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.paths import RunPaths

_PROMPT = "LoRA"
"""Of the requests that make adapters known: so short that it fills no block of the KV cache."""


@dataclass(frozen=True)
class LoraAdapters:
    """The adapters that requests of a workload name."""

    folders: Mapping[int, Path]
    """Where each was read, by its task id."""
    weights: Mapping[int, bytes]
    """What to send with the first request of each, by its task id."""

    @classmethod
    def read(cls, workload: Workload, paths: RunPaths) -> LoraAdapters:
        """Read the adapters of a workload; mostly none. Raises RequestFailed if one cannot be read."""
        task_ids = workload.lora_task_ids
        named = (
            adapter.directory or paths.converted_adapter(adapter.adapter or "") for adapter in workload.lora
        )
        folders = dict(zip(task_ids, map(Path, named), strict=True))
        read = {task_id: read_adapter(folder, task_id) for task_id, folder in folders.items()}
        return cls(folders, {task_id: encode_weights(adapter) for task_id, adapter in read.items()})

    def make_known(self, targets: Sequence[Target], example: Request, clock: Clock) -> None:
        """Send each adapter once to each model of each instance: each has a cache of its own.

        Over gRPC, whatever the protocol of the load: Triton takes no FP16 in JSON. ``example`` is a request
        of the workload, whose prompt is cut to one token. Raises RequestFailed if a server does not take an
        adapter; NotReady if there is no connection to the endpoint.
        """
        for target in targets:
            for instance in range(target.endpoint.instances):
                is_only = target.endpoint.instances == 1
                server = replace(target, protocol="grpc", instance=None if is_only else instance)
                self._make_known(server, example, clock)

    def _make_known(self, server: Target, example: Request, clock: Clock) -> None:
        short = replace(
            example,
            max_tokens=1,
            prompt=None if example.prompt is None else _PROMPT,
            token_ids=None if example.token_ids is None else example.token_ids[:1],
        )
        payloads = [
            encode_request(replace(short, lora_task_id=task_id), server) + weights
            for task_id, weights in self.weights.items()
        ]
        if not payloads:
            return
        load = run_load(ClosedPlan(server, payloads, clock, 1, count=len(payloads)))
        if load.interrupted:
            raise KeyboardInterrupt
        for reply in load.replies:
            if not reply.ok:
                task_id, folder = list(self.folders.items())[reply.index]
                error = reply.error or reply.status
                raise RequestFailed(
                    f"Model {server.model!r} does not take the LoRA adapter {task_id} in {folder}: {error}",
                    hint="raise serve.max_request_mib"
                    if "serve.max_request_mib" in error
                    else "measure without adapters: --set workload.lora=[]",
                )
