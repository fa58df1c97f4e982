"""A stand-in for ``trtllm-serve``: its options, its refusals, its routes and its behaviour (1.2.0).

Options: ``tensorrt_llm/commands/serve.py``. The port is bound before the model is loaded; ``/health``
answers from then on whatever happens. The ranks are joined through the launcher's port, and must be as many
as the model is split into. Behind it computes a real server, ``transformers serve``, if ``FAKE_SERVE_WITH``
names its URL and ``FAKE_SERVE_MODEL`` its model; otherwise each answer is the prompt's words again.

``trtllm-serve disaggregated`` has a context server compute each prompt, and passes what that says, and the
prompt's tokens, on to a generation server (``tensorrt_llm/serve/openai_disagg_service.py``). It lists no
models, and answers nothing before all servers are healthy.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import json
import os
import socket
import sys
import time
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import click
import yaml
from aiohttp import web

# Initialises MPI, whatever the command: so do upstream's disagg_utils.py and _utils.py at their heads.
from mpi4py.MPI import COMM_WORLD
from tokenizers import Tokenizer

_CHOICES = {
    "backend": ["pytorch", "tensorrt", "trt", "_autodeploy"],
    "log_level": ["internal_error", "error", "warning", "info", "verbose", "debug", "trace"],
}
_NUMBERS = (
    *("max_beam_width", "max_batch_size", "max_num_tokens", "max_seq_len", "gpus_per_node"),
    "num_postprocess_workers",
)
_TEXTS = (
    *("tokenizer", "custom_tokenizer", "revision", "reasoning_parser", "tool_parser", "server_role"),
    *("metadata_server_config_file", "otlp_traces_endpoint", "disagg_cluster_uri", "media_io_kwargs"),
    *("chat_template", "custom_module_dirs"),
)
_FLAGS = ("trust_remote_code", "fail_fast_on_attention_window_too_large", "enable_chunked_prefill")
_SIZES = {
    "tensor_parallel_size": "tp_size",
    "pipeline_parallel_size": "pp_size",
    "context_parallel_size": "cp_size",
    "moe_expert_parallel_size": "ep_size",
    "moe_cluster_parallel_size": "cluster_size",
}
_KEYS = (
    *("kv_cache_config", "scheduler_config", "cuda_graph_config", "moe_config", "dtype", "max_input_len"),
    *("enable_attention_dp", "enable_chunked_prefill", "return_perf_metrics", "cache_transceiver_config"),
    *("disable_overlap_scheduler", "moe_tensor_parallel_size", "print_iter_log", "trust_remote_code"),
    *_NUMBERS,
    *_SIZES,
)
"""Some of the keys of ``TorchLlmArgs`` (``tensorrt_llm/llmapi/llm_args.py``); others are refused, as upstream
refuses what it does not know."""
AUTH_KEY, _AUTH_HEADER = "internal_request_auth_key", "X-Internal-Auth"
"""Newer images sign a phase's requests with this key (TensorRT-LLM 16002); here the key itself is sent."""
BEHAVIOUR = os.environ.get("FAKE_SERVE", "").split()


# Importing the library has FlashInfer make this folder; the program ends if it cannot be made (1.3.0rc3).
_FLASHINFER = Path(os.environ.get("FLASHINFER_WORKSPACE_BASE", Path.home()), ".cache", "flashinfer")
_FLASHINFER.mkdir(parents=True, exist_ok=True)


def options() -> list[click.Parameter]:
    """The parameters of the command ``serve``."""
    found: list[click.Parameter] = [
        click.Argument(["model"]),
        click.Option(["--host"], default="localhost"),
        click.Option(["--port"], type=int, default=8000),
        click.Option(["--free_gpu_memory_fraction", "--kv_cache_free_gpu_memory_fraction"], type=float),
        click.Option(["--config", "--extra_llm_api_options", "config"]),
    ]
    found += [click.Option([f"--{name}"], type=click.Choice(these)) for name, these in _CHOICES.items()]
    found += [click.Option([f"--{name}"], type=int) for name in _NUMBERS]
    found += [click.Option([f"--{name}"]) for name in _TEXTS]
    found += [click.Option([f"--{name}"], is_flag=True) for name in _FLAGS]
    found += [
        click.Option([f"--{name}", f"--{short}"], type=int, default=None if "moe" in name else 1)
        for name, short in _SIZES.items()
    ]
    return found


def serve(model: str, host: str, port: int, config: str | None, **given: Any) -> None:
    """Serve until SIGTERM."""
    extra = yaml.safe_load(Path(config).read_text()) if config else {}
    key = (extra or {}).pop(AUTH_KEY, None) if _knows_auth_key() else None
    if unknown := set(extra or {}) - set(_KEYS):
        raise ValueError(
            f"1 validation error for TorchLlmArgs\n{min(unknown)}\n  Extra inputs are not permitted"
        )
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise RuntimeError(f"Failed to bind socket to {host}:{port}: {error}") from error
        _join(given)
        _load(Path(model))
        server = _Server(Path(model).name, key, perf_metrics=bool((extra or {}).get("return_perf_metrics")))
        listener.listen()
        print(f"Started server process [{os.getpid()}]", flush=True)
        web.run_app(server.app(), sock=listener, print=None, handle_signals=True)


def _knows_auth_key() -> bool:
    found = importlib.util.find_spec("tensorrt_llm")
    places = found.submodule_search_locations if found is not None else None
    return any(AUTH_KEY in Path(it, "llmapi", "disagg_utils.py").read_text() for it in places or ())


def _join(given: dict[str, Any]) -> None:
    """Join the ranks through the launcher's port; there must be one for each part of the model."""
    world = given["tensor_parallel_size"] * given["pipeline_parallel_size"] * given["context_parallel_size"]
    variable = "tllm_mpi_size"
    is_spawned = os.environ.get("TLLM_SPAWN_PROXY_PROCESS") == "1"
    ranks = int(os.environ.get(variable, "1")) if is_spawned else COMM_WORLD.size
    if ranks != world:
        raise RuntimeError(
            f"MPI size ({ranks}) does not match the world size ({world}) of the model's mapping"
        )
    place = os.environ.get("TLLM_SPAWN_PROXY_PROCESS_IPC_ADDR")
    if place is None:
        return
    kind, _, address = place.partition("://")
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + 20
    while True:
        try:
            with socket.socket(socket.AF_UNIX if kind == "ipc" else socket.AF_INET) as leader:
                leader.connect(address if kind == "ipc" else (host, int(port)))
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _load(model: Path) -> None:
    if not (model / "config.json").exists():
        raise OSError(f"{model} does not appear to have a file named config.json")
    _log("Use 0.01 GB for model weights.")
    print("Loading weights:   0%|          | 0/801 [00:00<?, ?it/s]\r", end="", file=sys.stderr, flush=True)
    gate = Path(os.environ.get("FAKE_LOADED", "/"))
    while not gate.exists():
        time.sleep(0.05)
    print("Model init total -- 1.25s", flush=True)
    for line in _AFTER_WEIGHTS:
        _log(line)


_AFTER_WEIGHTS = (
    "Running torch.compile warmup...",
    "Run warmup with 1 tokens, include 0 generation tokens",
    "Running autotuner warmup...",
    "[Autotuner] Autotuning process starts ...",
    "[Autotuner] Autotuning process ends",
    "[Autotuner] Cache size after warmup is 28",
    "Creating CUDA graph instances for 11 batch sizes.",
    "Memory used after loading model weights (inside torch) in memory usage profiling: 0.01 GiB",
    "Estimated max memory in KV cache : 5.95 GiB",
    "Setting PyTorch memory fraction to 0.6 (47.5 GiB)",
)
"""What the server logs of its start, in its order (``_torch/pyexecutor``, 1.3.0rc3)."""


def _log(text: str) -> None:
    """Log a line as ``tensorrt_llm/logger.py`` does."""
    print(f"[{time.strftime('%m/%d/%Y-%H:%M:%S')}] [TRT-LLM] [I] {text}", flush=True)


class _Routes:
    """The routes that both servers have."""

    _client: aiohttp.ClientSession

    def app(self) -> web.Application:
        """Return the application."""
        made = web.Application()
        made.cleanup_ctx.append(self._session)
        made.router.add_get("/health", self._health)
        made.router.add_get("/version", self._version)
        made.router.add_post("/v1/completions", self._complete)
        made.router.add_post("/v1/chat/completions", self._complete)
        return made

    async def _session(self, _app: web.Application) -> AsyncIterator[None]:
        async with aiohttp.ClientSession() as self._client:
            yield

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, _request: web.Request) -> web.Response:
        return web.json_response({"version": "1.2.0"})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        raise NotImplementedError

    async def _pass_on(
        self, request: web.Request, url: str, body: dict[str, Any], headers: dict[str, str]
    ) -> web.StreamResponse:
        """Answer a request with what another server answers, piece by piece."""
        async with self._client.post(url, json=body, headers=headers) as found:
            answer = web.StreamResponse(status=found.status, headers={"Content-Type": found.content_type})
            await answer.prepare(request)
            async for piece in found.content.iter_any():
                await answer.write(piece)
            return answer


class _Server(_Routes):
    """The routes of ``tensorrt_llm/serve/openai_server.py``."""

    def __init__(self, model: str, key: str | None, *, perf_metrics: bool) -> None:
        self._model, self._auth_key, self._perf_metrics = model, key, perf_metrics
        self._total = 0
        self._behind = os.environ.get("FAKE_SERVE_WITH")
        self._steps = 0

    def app(self) -> web.Application:
        """Return the application."""
        made = super().app()
        made.router.add_get("/health_generate", self._health_generate)
        made.router.add_get("/v1/models", self._models)
        made.router.add_get("/metrics", self._metrics)
        if self._perf_metrics:
            made.router.add_get("/prometheus/metrics", self._page)
        made.router.add_get("/steady_clock_offset", self._clock)
        made.router.add_post("/steady_clock_offset", self._health)
        made.router.add_get("/server_info", self._info)
        return made

    async def _info(self, _request: web.Request) -> web.Response:
        """The front asks for it before it serves, too."""
        return web.json_response({"disaggregated_params": {}})

    async def _clock(self, _request: web.Request) -> web.Response:
        """The front asks for the difference of the clocks before it serves, and sends it back."""
        now_s = time.monotonic()
        return web.json_response({"receive_ts": now_s, "transmit_ts": now_s})

    async def _health_generate(self, _request: web.Request) -> web.Response:
        if self._behind is not None:
            asked = {"model": os.environ["FAKE_SERVE_MODEL"], "prompt": "a", "max_tokens": 1}
            async with self._client.post(f"{self._behind}/v1/completions", json=asked) as found:
                return web.Response(status=200 if found.ok else 500)
        return web.Response()

    async def _models(self, _request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self._model, "object": "model"}]})

    async def _metrics(self, _request: web.Request) -> web.Response:
        """Statistics of the steps since the last call, which are gone then."""
        steps, self._steps = self._steps, 0
        one = {"iterLatencyMS": 1.5, "numActiveRequests": 1, "numQueuedRequests": 0, "gpuMemUsage": 0}
        cache = {"maxNumBlocks": 100, "freeNumBlocks": 90, "usedNumBlocks": 10, "tokensPerBlock": 32}
        return web.json_response([{"iter": step, **one, "kvCacheStats": cache} for step in range(steps)])

    async def _page(self, _request: web.Request) -> web.Response:
        """A line of the page of ``tensorrt_llm/metrics/collector.py``."""
        name = "trtllm_request_success_total"
        return web.Response(
            text=f'# TYPE {name} counter\n{name}{{model_name="{self._model}"}} {self._total}.0\n'
        )

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        self._steps += 1
        self._total += 1
        if self._behind is not None:
            behind = {**await request.json(), "model": os.environ["FAKE_SERVE_MODEL"]}
            if "prompt" in behind:
                behind["prompt"] = _prompt_text(behind["prompt"])
            return await self._pass_on(request, f"{self._behind}{request.path}", behind, {})
        body = await request.json()
        if "waits" in BEHAVIOUR:
            # Upstream's await_disconnected looks once a second.
            while request.transport is not None:
                await asyncio.sleep(1)
            print(f"{request.remote} is disconnected, abort {self._steps}", flush=True)
        is_chat = request.path.endswith("chat/completions")
        phase = body.get("disaggregated_params") or {}
        if phase.get("request_type") == "generation_only":
            if self._auth_key is not None and request.headers.get(_AUTH_HEADER) != self._auth_key:
                return web.json_response({"error": "Invalid internal request"}, status=401)
            print(f"generation after context process {phase['encoded_opaque_state']}", flush=True)
        prompt = body["messages"][-1]["content"] if is_chat else body["prompt"]
        # A generation server gets the context server's tokens on both routes. They are letters here.
        tokens = body.get("prompt_token_ids", prompt)
        prompt = prompt if isinstance(tokens, str) else "".join(map(chr, tokens))
        of_context = phase.get("request_type") == "context_only"
        words = f"{prompt} {prompt}".split()[: 1 if of_context else body.get("max_tokens") or 16]
        usage = {"prompt_tokens": len(words), "completion_tokens": len(words), "total_tokens": 2 * len(words)}
        head = {"id": "1", "created": 0, "model": self._model}
        if not body.get("stream"):
            choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
            whole = " ".join(words)
            choice |= {"message": {"role": "assistant", "content": whole}} if is_chat else {"text": whole}
            if of_context:
                number = phase["disagg_request_id"]
                choice["disaggregated_params"] = {
                    "request_type": "context_only",
                    "ctx_request_id": number,
                    "disagg_request_id": number,
                    "first_gen_tokens": [0],
                    "encoded_opaque_state": str(os.getpid()),
                }
                head["prompt_token_ids"] = [*map(ord, prompt)]
            return web.json_response({**head, "choices": [choice], "usage": usage})
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        for number, word in enumerate(words):
            text = f" {word}" if number else word
            part = {"delta": {"content": text}} if is_chat else {"text": text}
            await _send(answer, {**head, "choices": [{"index": 0, "finish_reason": None, **part}]})
        await _send(answer, {**head, "choices": [], "usage": usage})
        await answer.write(b"data: [DONE]\n\n")
        return answer


def _prompt_text(prompt: str | list[int]) -> str:
    """Return a prompt as text: ``trtllm-serve`` takes token IDs, ``transformers serve`` refuses them."""
    if isinstance(prompt, str):
        return prompt
    tokenizer = Tokenizer.from_file(f"{os.environ['FAKE_SERVE_MODEL']}/tokenizer.json")
    return str(tokenizer.decode(prompt, skip_special_tokens=False))


class _Front(_Routes):
    """The routes of ``tensorrt_llm/serve/openai_disagg_server.py``."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._context = itertools.cycle(config["context_servers"]["urls"])
        self._generation = itertools.cycle(config["generation_servers"]["urls"])
        self._numbers = itertools.count(1)
        self._headers = {_AUTH_HEADER: config[AUTH_KEY]} if _knows_auth_key() and AUTH_KEY in config else {}

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        if request.content_type != "application/json":  # FastAPI hands upstream's models the bytes
            return web.Response(status=500, text="Internal Server Error")
        body = await request.json()
        number = next(self._numbers)
        phase = {"request_type": "context_only", "disagg_request_id": number}
        first = {**body, "stream": False, "disaggregated_params": phase}
        try:
            prepared = await self._ask(f"http://{next(self._context)}{request.path}", first)
            given = {**prepared["choices"][0]["disaggregated_params"], "request_type": "generation_only"}
            tokens = "prompt_token_ids" if request.path.endswith("chat/completions") else "prompt"
            body = {**body, tokens: prepared["prompt_token_ids"], "disaggregated_params": given}
            url = f"http://{next(self._generation)}{request.path}"
            if body.get("stream"):
                return await self._stream(request, url, body)
            return web.json_response(await self._ask(url, body))
        except aiohttp.ClientError as error:
            return web.json_response({"detail": f"Internal server error {error}"}, status=500)

    async def _ask(self, url: str, body: dict[str, Any]) -> Any:
        """Ask the same server once more after a second if it fails (``openai_client.py``)."""
        for pause_s in (1, None):
            try:
                async with self._client.post(url, json=body, headers=self._headers) as found:
                    found.raise_for_status()
                    return await found.json()
            except aiohttp.ClientError:
                if pause_s is None:
                    raise
                await asyncio.sleep(pause_s)

    async def _stream(self, request: web.Request, url: str, body: dict[str, Any]) -> web.StreamResponse:
        """Say 200 before the server is asked; what fails then ends the connection."""
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        try:
            async with self._client.post(url, json=body, headers=self._headers) as found:
                found.raise_for_status()
                async for piece in found.content.iter_any():
                    await answer.write(piece)
        except aiohttp.ClientError:
            assert request.transport is not None
            request.transport.close()
        return answer


def disaggregated(config_file: str, server_start_timeout: int, **_given: Any) -> None:
    """Serve in front of the servers of both phases."""
    config = yaml.safe_load(Path(config_file).read_text())
    for role in ("context_servers", "generation_servers"):
        found, wanted = len(config[role]["urls"]), config[role]["num_instances"]
        if found != wanted:
            raise ValueError(
                f"Number of hostnames ({found}) should be equal to the number of instances ({wanted})"
            )
    with socket.socket() as listener:
        try:
            listener.bind((config["hostname"], config["port"]))
        except OSError as error:
            place = f"{config['hostname']}:{config['port']}"
            raise RuntimeError(f"Failed to bind socket to {place}: {error}") from error
        _wait_for(
            config["context_servers"]["urls"] + config["generation_servers"]["urls"], server_start_timeout
        )
        listener.listen()
        web.run_app(_Front(config).app(), sock=listener, print=None, handle_signals=True)


def _wait_for(urls: list[str], timeout_s: int) -> None:
    """Wait until every server says that it is healthy."""
    deadline = time.monotonic() + timeout_s
    for url in urls:
        while True:
            try:
                urllib.request.urlopen(f"http://{url}/health", timeout=5).close()
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise TimeoutError("Timeout waiting for all servers to be ready") from error
                time.sleep(0.2)


def front_options() -> list[click.Parameter]:
    """The parameters of the command ``disaggregated``."""
    return [
        click.Option(["-c", "--config_file"]),
        click.Option(["-m", "--metadata_server_config_file"]),
        click.Option(["-t", "--server_start_timeout"], type=int, default=180),
        click.Option(["-r", "--request_timeout"], type=int, default=180),
        click.Option(["-l", "--log_level"], type=click.Choice(_CHOICES["log_level"])),
        click.Option(["--metrics-log-interval"], type=int, default=0),
    ]


async def _send(answer: web.StreamResponse, event: dict[str, Any]) -> None:
    await answer.write(f"data: {json.dumps(event)}\n\n".encode())


class DefaultGroup(click.Group):
    """Takes a first word that names no sub-command for the model to serve, as upstream's group does."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands:
            return "serve", self.commands["serve"], args
        return super().resolve_command(ctx, args)


main = DefaultGroup(
    commands={
        "serve": click.Command("serve", callback=serve, params=options()),
        "disaggregated": click.Command("disaggregated", callback=disaggregated, params=front_options()),
    }
)

if __name__ == "__main__":
    main()
