"""Triton model ``tensorrt_llm``: token ids in, token ids out. Runs in Triton's Python stub."""

from __future__ import annotations

import faulthandler
import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from trtllm_hpc.reference.delivery import Delivery, submit
from trtllm_hpc.reference.engine_config import ServeSettings, plain_path
from trtllm_hpc.reference.engine_process import EngineProcess, Start
from trtllm_hpc.reference.generation import Outcome
from trtllm_hpc.reference.metrics import Metrics
from trtllm_hpc.reference.requests import Part, parse
from trtllm_hpc.reference.shutdown import Shutdown, stop_server_when_started
from trtllm_hpc.reference.world import World


class TritonPythonModel:
    """Rank 0 serves; the other ranks stay in ``initialize`` and take part in every step."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the engine. On ranks above 0 this returns only after the leader has stopped them."""
        # A crash of the stub then leaves a traceback in the rank's log.
        faulthandler.enable()
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        self._inputs = [tensor["name"] for tensor in config["input"]]
        self._decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        self._engine: EngineProcess | None = None
        world = World.from_environment(os.environ)
        self._shutdown = Shutdown(world)
        with self._shutdown.reporting_failure():
            settings = ServeSettings.from_parameters(parameters)
            folder = Path(plain_path(parameters["gpt_model_path"]))
            engine = EngineProcess(Start(folder, settings, world, os.getppid()))
            if world.is_leader:
                self._serve(engine, settings, args)
        if not world.is_leader:
            engine.wait_ended(self._shutdown.die)
            stop_server_when_started()

    def execute(self, triton_requests: list[Any]) -> None:
        """Submit the requests; ``Delivery`` sends the answers."""
        submit(triton_requests, pb_utils, self._read)

    def finalize(self) -> None:
        """Stop the engines of all ranks and all threads."""
        if self._engine is not None:
            self._engine.stop()
            self._delivery.close()
            self._metrics.close()
        self._shutdown.release()

    def _serve(self, engine: EngineProcess, settings: ServeSettings, args: dict[str, str]) -> None:
        self._info = engine.info
        self._metrics = Metrics(
            engine,
            pb_utils,
            model=args["model_name"],
            version=args["model_version"],
            period_s=settings.stats_check_period_ms / 1000,
        )
        self._delivery = Delivery(
            engine,
            pb_utils,
            cancellation_check_s=settings.cancellation_check_period_ms / 1000,
            observe=self._metrics.observe,
        )
        engine.serve(self._hear, self._shutdown.die, self._metrics.observe)
        self._engine = engine

    def _hear(self, outcomes: Mapping[int, Sequence[Outcome]]) -> None:
        # Only a request makes steps, and Triton takes none before its models are initialised.
        if self._engine is not None and self._engine.load().iteration:
            self._metrics.start()
        self._delivery.hear(outcomes)

    def _read(self, request: Any) -> tuple[Delivery, Sequence[Part]]:
        tensors = {name: pb_utils.get_input_tensor_by_name(request, name) for name in self._inputs}
        # Copied: the arrays lie in memory that Triton uses again.
        arrays = {name: tensor.as_numpy().copy() for name, tensor in tensors.items() if tensor is not None}
        return self._delivery, parse(arrays, self._info, decoupled=self._decoupled)
