"""Triton model ``tensorrt_llm``: token ids in, token ids out. Runs in Triton's Python stub."""

from __future__ import annotations

import json
import logging
import os
from typing import Any

import triton_python_backend_utils as pb_utils

from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.reference import requests
from trtllm_hpc.reference.ending import Ending, stop_server_when_started
from trtllm_hpc.reference.engine import Engine
from trtllm_hpc.reference.engine_folder import EngineFolder
from trtllm_hpc.reference.outputs import output_tensors
from trtllm_hpc.reference.ranks import Job, Leader, follow
from trtllm_hpc.reference.stub_paths import plain_path
from trtllm_hpc.reference.world import World


class TritonPythonModel:
    """Rank 0 serves; the other ranks stay in ``initialize`` and take part in every step."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the engine. On ranks above 0 it returns only when the leader has said stop."""
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
        config = json.loads(args["model_config"])
        self._inputs = [tensor["name"] for tensor in config["input"]]
        self._leader: Leader | None = None
        world = World.from_environment(os.environ)
        self._ending = Ending(world)
        with self._ending.reporting_failure():
            world.connect()
            folder = plain_path(config["parameters"]["gpt_model_path"]["string_value"])
            engine = Engine.load(EngineFolder(folder), world)
            self._info = engine.info
            if world.is_leader:
                self._leader = Leader(engine, world, self._ending)
                self._leader.start()
        if not world.is_leader:
            follow(engine, world, self._ending)
            stop_server_when_started()

    def execute(self, triton_requests: list[Any]) -> None:
        """Queue the requests; the leader's thread answers them."""
        assert self._leader is not None
        for request in triton_requests:
            sender = request.get_response_sender()
            try:
                requests.refuse_parameters(json.loads(request.parameters() or "{}"))
                parsed = requests.parse(self._read(request), self._info)
            except RequestFailed as error:
                _send_error(sender, error)
                continue
            self._leader.submit(Job(parsed, _answer(sender, parsed), sender.is_cancelled))

    def finalize(self) -> None:
        """Send the other ranks home."""
        if self._leader is not None:
            self._leader.stop()
        self._ending.release()

    def _read(self, request: Any) -> requests.Inputs:
        tensors = {name: pb_utils.get_input_tensor_by_name(request, name) for name in self._inputs}
        return {name: tensor.as_numpy() for name, tensor in tensors.items() if tensor is not None}


def _answer(sender: Any, request: requests.GenerationRequest) -> Any:
    def answer(outcome: requests.Completion | RequestFailed) -> None:
        if isinstance(outcome, RequestFailed):
            _send_error(sender, outcome)
            return
        # By DLPack: the stub of this Triton release misreads NumPy 2 arrays.
        outputs = output_tensors(request, outcome).items()
        tensors = [pb_utils.Tensor.from_dlpack(name, tensor) for name, tensor in outputs]
        sender.send(pb_utils.InferenceResponse(tensors), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    return answer


def _send_error(sender: Any, error: RequestFailed) -> None:
    response = pb_utils.InferenceResponse(
        error=pb_utils.TritonError(error.message, pb_utils.TritonError.INVALID_ARG)
    )
    sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
