"""A real tritonserver with models that answer at once: ``ensemble`` and its likes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from trtllm_hpc.client.http import is_ready
from trtllm_hpc.runtime.records import Endpoint

_START_LIMIT_S = 60.0
_TEXT_INPUTS = {"text_input": "STRING", "max_tokens": "INT32", "bad_words": "STRING", "stop_words": "STRING"}

# Each model: its inputs and its outputs, all of one flexible dimension and batched.
MODELS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "ensemble": (_TEXT_INPUTS, {"text_output": "STRING", "sequence_length": "INT32"}),
    "uncounted": (_TEXT_INPUTS, {"text_output": "STRING"}),
    "decoupled": (_TEXT_INPUTS, {"text_output": "STRING", "sequence_length": "INT32"}),
    "llm_api": (
        {"text_input": "STRING", "sampling_param_max_tokens": "INT32"},
        {"text_output": "STRING", "sequence_length": "INT32"},
    ),
}
CORE_MODELS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "preprocessing": (
        {
            "QUERY": "STRING",
            "REQUEST_OUTPUT_LEN": "INT32",
            "BAD_WORDS_DICT": "STRING",
            "STOP_WORDS_DICT": "STRING",
        },
        {"INPUT_ID": "INT32", "REQUEST_INPUT_LEN": "INT32"},
    ),
    "tensorrt_llm": (
        {"input_ids": "INT32", "input_lengths": "INT32", "request_output_len": "INT32"},
        {"output_ids": "INT32", "sequence_length": "INT32"},
    ),
    "core_decoupled": (
        {"input_ids": "INT32", "input_lengths": "INT32", "request_output_len": "INT32", "streaming": "BOOL"},
        {"output_ids": "INT32", "sequence_length": "INT32"},
    ),
}
_DECOUPLED = ("decoupled", "core_decoupled")
_OPTIONAL = ("streaming",)


@contextmanager
def echo_server(folder: Path, *, core_models: bool = False) -> Iterator[Endpoint]:
    """Start the server in ``folder``, yield its endpoint once ready, and stop it."""
    ports = _free_ports(3)
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(_command(folder, ports, core_models), stdout=log, stderr=log)
    endpoint = Endpoint(
        job_id="1",
        host=socket.gethostname(),
        address="127.0.0.1",
        http_port=ports[0],
        grpc_port=ports[1],
        metrics_port=ports[2],
        models=list(MODELS),
        ready_at=time.time(),
    )
    try:
        _until_ready(process, endpoint, folder / "server.log")
        yield endpoint
    finally:
        process.terminate()
        process.wait(30)


def _command(folder: Path, ports: list[int], core_models: bool) -> list[str]:
    _write_repository(folder / "repository", core_models)
    return [
        "env",
        # The stub takes the first python3 on PATH for its environment.
        f"PATH={Path(sys.executable).parent}:{os.environ['PATH']}",
        str(_wheel() / "bin" / "tritonserver"),
        f"--model-repository={folder / 'repository'}",
        f"--backend-directory={_link_backends(folder / 'backends')}",
        f"--backend-config=python,shm-region-prefix-name=echo_{os.getpid()}_{ports[0]}_",
        f"--http-port={ports[0]}",
        f"--grpc-port={ports[1]}",
        f"--metrics-port={ports[2]}",
        "--http-address=127.0.0.1",
        "--grpc-address=127.0.0.1",
        "--allow-gpu-metrics=false",
        "--disable-auto-complete-config",
    ]


def _until_ready(process: subprocess.Popen[bytes], endpoint: Endpoint, log: Path) -> None:
    end = time.monotonic() + _START_LIMIT_S
    while not is_ready(endpoint, 1.0):
        assert process.poll() is None and time.monotonic() < end, log.read_text(errors="replace")[-3000:]
        time.sleep(0.1)


def _wheel() -> Path:
    spec = find_spec("pytriton")
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "tritonserver"


def _link_backends(folder: Path) -> Path:
    python = folder / "python"
    python.mkdir(parents=True)
    release = f"{sys.version_info.major}.{sys.version_info.minor}"
    for source in (
        _wheel() / "backends" / "python" / "libtriton_python.so",
        _wheel() / "backends" / "python" / "triton_python_backend_utils.py",
        _wheel() / "python_backend_stubs" / release / "triton_python_backend_stub",
    ):
        (python / source.name).symlink_to(source)
    return folder


def _write_repository(folder: Path, core_models: bool) -> None:
    source = Path(__file__).with_name("echo_model.py").read_text(encoding="utf-8")
    for name, (inputs, outputs) in (MODELS | (CORE_MODELS if core_models else {})).items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1" / "model.py").write_text(source, encoding="utf-8")
        size = 0 if name == "llm_api" else 8
        config = [f'name: "{name}"', 'backend: "python"', f"max_batch_size: {size}"]
        if name in _DECOUPLED:
            config.append("model_transaction_policy { decoupled: true }")
        for kind, tensors in (("input", inputs), ("output", outputs)):
            for tensor, datatype in tensors.items():
                dims = "[ -1, -1 ]" if tensor == "output_ids" else "[ -1 ]"
                optional = " optional: true" if tensor in _OPTIONAL else ""
                config.append(
                    f'{kind} [ {{ name: "{tensor}" data_type: TYPE_{datatype} dims: {dims}{optional} }} ]'
                )
        (folder / name / "config.pbtxt").write_text("\n".join(config), encoding="utf-8")


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
