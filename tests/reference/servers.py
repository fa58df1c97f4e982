"""Real Triton servers, one a rank, started straight as processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.triton import link_backends, wheel_folder
from trtllm_hpc.backends.reference import MODELS, model_source
from trtllm_hpc.reference.world import RENDEZVOUS
from trtllm_hpc.render.environment import render_template
from trtllm_hpc.runtime.model_repository.writer import schema, text_format
from trtllm_hpc.runtime.node import free_ports
from trtllm_hpc.runtime.process import allow_large_requests
from trtllm_hpc.runtime.records import Endpoint

START_LIMIT_S = 120.0
MAX_BATCH_SIZE = 8


def write_repository(folder: Path, engine: Path, **options: Any) -> Path:
    """A model repository with the options of ``config``."""
    for model in MODELS:
        version = folder / model / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(model_source(model), encoding="utf-8")
        (version.parent / "config.pbtxt").write_text(config(model, engine, **options), encoding="utf-8")
    return folder


def add_recorded(repository: Path) -> None:
    """Add the model that replays recorded answers."""
    version = repository / "recorded" / "1"
    version.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("recorded.py"), version / "model.py")
    text = config("tensorrt_llm_bls", Path("/none"), decoupled=True)
    text = text.replace('name: "tensorrt_llm_bls"', 'name: "recorded"')
    (version.parent / "config.pbtxt").write_text(text, encoding="utf-8")


def config(
    model: str,
    engine: Path,
    *,
    decoupled: bool = False,
    bls_instances: int = 1,
    postprocessing_instances: int = 1,
    **parameters: str,
) -> str:
    """A model's ``config.pbtxt``; ``parameters`` are values in it as strings."""
    values = {
        "accumulate_tokens": "false",
        "max_queue_size": "0",
        "max_tokens_in_paged_kv_cache": "",
        **parameters,
    }
    return render_template(
        f"repository/reference/{model}/config.pbtxt.j2",
        engine_dir=str(engine),
        tokenizer_dir=str(engine / "tokenizer"),
        max_batch_size=MAX_BATCH_SIZE,
        decoupled=decoupled,
        preprocessing_instance_count=1,
        postprocessing_instance_count=postprocessing_instances,
        bls_instance_count=bls_instances,
        **values,
    )


class Form(NamedTuple):
    """Type and shape of a tensor, without the batch dimension."""

    type: str
    dims: tuple[int, ...]
    is_optional: bool = False
    is_scalar: bool = False
    """It is [1] for the client and has no dimension for the model."""


@cache
def tensors() -> dict[tuple[str, str, str], Form]:
    """Every tensor of the rendered models, by model, ``input`` or ``output``, and name."""
    configs = {
        model: text_format().Parse(config(model, Path("/engine")), schema().ModelConfig()) for model in MODELS
    }
    return {
        (model, kind, tensor.name): Form(
            schema().DataType.Name(tensor.data_type).removeprefix("TYPE_"),
            tuple(tensor.dims),
            getattr(tensor, "optional", False),
            tensor.HasField("reshape"),
        )
        for model, parsed in configs.items()
        for kind in ("input", "output")
        for tensor in getattr(parsed, kind)
    }


@dataclass
class World:
    """The servers of all ranks of one model."""

    folder: Path
    prefix: str
    http_port: int
    grpc_port: int
    metrics_port: int
    ranks: list[subprocess.Popen[bytes]]

    @property
    def endpoint(self) -> Endpoint:
        """The leader's, as a run's supervisor publishes it."""
        ports = (self.http_port, self.grpc_port, self.metrics_port)
        return Endpoint("1", "localhost", "127.0.0.1", *ports, sorted(MODELS), 0.0)

    def log(self, rank: int) -> str:
        return (self.folder / f"rank{rank}.log").read_text(encoding="utf-8", errors="replace")

    def failure(self, rank: int) -> str:
        file = self.folder / f"failure{rank}.txt"
        return file.read_text(encoding="utf-8") if file.exists() else ""

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.http_port}/v2/{path}"

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(self.url("health/ready"), timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while not self.is_ready():
            ended = [rank for rank, process in enumerate(self.ranks) if process.poll() is not None]
            assert not ended, f"rank {ended[0]} ended while starting:\n{self.log(ended[0])}"
            assert time.monotonic() < deadline, f"not ready in {START_LIMIT_S} s:\n{self.log(0)}"
            time.sleep(0.1)

    def wait_ended(self, rank: int, limit_s: float = 60) -> int:
        return self.ranks[rank].wait(timeout=limit_s)

    def generate(self, body: Mapping[str, Any], model: str = "ensemble") -> tuple[int, Any]:
        """Status and answer of Triton's generate endpoint."""
        request = urllib.request.Request(self.url(f"models/{model}/generate"), json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def generate_stream(self, body: Mapping[str, Any], model: str = "ensemble") -> list[Any]:
        """The events of Triton's streaming generate endpoint."""
        url = self.url(f"models/{model}/generate_stream")
        with urllib.request.urlopen(
            urllib.request.Request(url, json.dumps(body).encode()), timeout=60
        ) as answer:
            lines = [line.decode() for line in answer]
        return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]

    def metrics(self) -> str:
        """Triton's metrics in Prometheus' text format."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=10) as answer:
            return bytes(answer.read()).decode()

    def children(self, rank: int) -> list[int]:
        """Process ids of a server's stubs."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text(encoding="utf-8").rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == self.ranks[rank].pid and fields[0] != "Z":
                found.append(int(stat.parent.name))
        return found

    def shared_memory(self) -> list[str]:
        return sorted(path.name for path in Path("/dev/shm").glob(f"{self.prefix}*"))

    def end(self) -> None:
        """End what is left, and remove what killed ranks leave in shared memory, as the job does."""
        for process in self.ranks:
            for stub in [] if process.poll() is not None else self.children(self.ranks.index(process)):
                os.kill(stub, signal.SIGKILL)
            process.kill()
            process.wait()
        for name in self.shared_memory():
            (Path("/dev/shm") / name).unlink(missing_ok=True)


def meeting(folder: Path) -> str:
    """Make what instance.sh makes for the ranks of one start."""
    made = Path(tempfile.mkdtemp(prefix="meeting.", dir=folder))
    (made / "key").write_bytes(os.urandom(32))
    return str(made)


@contextmanager
def start(folder: Path, repository: Path, size: int) -> Iterator[World]:
    """Start ``size`` ranks and wait until the leader is ready."""
    folder.mkdir(parents=True)
    http_port, grpc_port, metrics_port, master_port = free_ports(4)
    backends = link_backends(folder / "backends")
    prefix = f"tref{os.getpid()}x{http_port}"
    world = World(folder, prefix, http_port, grpc_port, metrics_port, [])
    rendezvous = meeting(folder)
    try:
        for rank in range(size):
            arguments = [
                str(wheel_folder() / "tritonserver" / "bin" / "tritonserver"),
                f"--model-repository={repository}",
                f"--backend-directory={backends}",
                "--disable-auto-complete-config",
                f"--backend-config=python,shm-region-prefix-name={prefix}_{rank}_",
                "--allow-gpu-metrics=false",
            ]
            if rank == 0:
                arguments += [f"--http-port={http_port}", f"--grpc-port={grpc_port}"]
                arguments += [f"--metrics-port={metrics_port}", "--http-address=127.0.0.1"]
                arguments += ["--grpc-address=127.0.0.1"]
            else:
                arguments += ["--model-control-mode=explicit", "--load-model=tensorrt_llm"]
                arguments += ["--allow-http=false", "--allow-grpc=false", "--allow-metrics=false"]
            with (folder / f"rank{rank}.log").open("wb") as log:
                world.ranks.append(
                    subprocess.Popen(
                        arguments,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        preexec_fn=allow_large_requests,
                        env=_environment(folder, rank, size, master_port) | {RENDEZVOUS: rendezvous},
                    )
                )
        world.wait_ready()
        yield world
    finally:
        world.end()


@contextmanager
def serve(folder: Path, engine: Path, *, ranks: int = 1, **options: Any) -> Iterator[World]:
    """Start the ranks of an engine with a repository of these options."""
    repository = write_repository(folder / "repository", engine, **options)
    with start(folder / "run", repository, ranks) as world:
        yield world


def _environment(folder: Path, rank: int, size: int, master_port: int) -> dict[str, str]:
    libraries = [sysconfig.get_config_var("LIBDIR"), os.environ.get("LD_LIBRARY_PATH")]
    return {
        **os.environ,
        # The stub takes the first python3 on PATH.
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": ":".join(filter(None, libraries)),
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(master_port),
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "TRTLLM_HPC_RANK_FAILURE": str(folder / f"failure{rank}.txt"),
    }
