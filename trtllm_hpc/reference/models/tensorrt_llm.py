"""Triton model ``tensorrt_llm``: token IDs in, token IDs out. Runs in Triton's Python stub."""

from __future__ import annotations

import faulthandler
import gc
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from trtllm_hpc.errors import StartFailed
from trtllm_hpc.reference.delivery import Delivery, LoadReporter
from trtllm_hpc.reference.engine_folder import EngineInfo, plain_path
from trtllm_hpc.reference.generation import GenerationRequest, RankEngine
from trtllm_hpc.reference.requests import parse
from trtllm_hpc.reference.stand_in import StandIn
from trtllm_hpc.reference.world import Shutdown, World, stop_server_when_started


class TritonPythonModel:
    """Rank 0 serves; the other ranks stay in ``initialize`` and take part in every step."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the engine. On ranks above 0 this returns only after the leader has stopped them."""
        # A crash of the stub leaves a traceback in the rank's log.
        faulthandler.enable()
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        self._inputs = [tensor["name"] for tensor in config["input"]]
        self._decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        world = World.from_environment(os.environ)
        self._shutdown = Shutdown(world)
        with self._shutdown.reporting_failure():
            engine, self._info = _load(parameters, world)
            gc.freeze()
            if world.is_leader:
                self._engine = engine
                names = {"model": args["model_name"], "version": args["model_version"]}
                self._metrics = LoadReporter(engine, pb_utils, **names)
                self._delivery = Delivery(engine, pb_utils, observe=self._metrics.observe)
                engine.start(self._delivery.hear, self._shutdown.die)
        if not world.is_leader:
            engine.follow(self._shutdown.die)
            stop_server_when_started()

    def execute(self, triton_requests: list[Any]) -> None:
        """Submit the requests; ``Delivery`` sends the answers."""
        # The engine runs steps only for requests, and Triton accepts none before its models are initialised.
        self._metrics.start()
        for request in triton_requests:
            self._delivery.submit(request, self._read)

    def finalize(self) -> None:
        """Stop the engines of all ranks and all threads."""
        if hasattr(self, "_delivery"):
            self._engine.stop()
            self._delivery.close()
            self._metrics.close()
        self._shutdown.release()

    def _read(self, request: Any) -> GenerationRequest | None:
        tensors = {name: pb_utils.get_input_tensor_by_name(request, name) for name in self._inputs}
        arrays = {name: tensor.as_numpy() for name, tensor in tensors.items() if tensor is not None}
        return parse(arrays, self._info, decoupled=self._decoupled)


def _load(parameters: Mapping[str, str], world: World) -> tuple[RankEngine, EngineInfo]:
    folder = Path(plain_path(parameters["gpt_model_path"]))
    info = EngineInfo.read(folder)
    if world.size != info.world_size:
        raise StartFailed(
            f"The engine in {folder} was built for {info.world_size} ranks, but {world.size} were started."
        )
    queue, tokens = (
        int(parameters.get(name) or 0) for name in ("max_queue_size", "max_tokens_in_paged_kv_cache")
    )
    if info.is_stand_in:
        return StandIn(info, world, max_queue_size=queue), info
    # By default GNU OpenMP's threads spin for milliseconds while they wait for each other, which takes cores
    # from the other ranks.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "120000")
    from trtllm_hpc.reference.engine import ModelEngine

    return ModelEngine(folder, info, world, max_queue_size=queue, max_tokens=tokens), info
