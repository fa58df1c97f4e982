"""Try an installation from an empty folder, by its own Python: ``python installed.py VERSION``.

``.ci/wheels`` copies this file out of the checkout, and installs the wheel without any extra. The server
answers every prompt with the same words; it is submitted, asked, measured and ended like any other server.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import pkgutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

PROGRAM = Path(sys.executable).with_name("trtllm-hpc")
OF_EXTRAS = {
    "gguf",
    "mpi4py",
    "pandas",
    "pytriton",
    "safetensors",
    "torch",
    "transformers",
}
ANY_SPEED = ["--set", "min_requests=20", "--set", "min_window_seconds=0.01", "--set", "max_late_share=1"]
WORDS = ["One", " job", " file", ",", " one", " command", "."]


def main() -> None:
    """Import everything, then type what a newcomer types."""
    version = sys.argv[1]
    package = importlib.import_module("trtllm_hpc")
    assert package.__version__ == version and str(package.__file__).startswith(sys.prefix), package.__file__
    for name in package.__all__:
        getattr(package, name)
    modules = [
        found.name for found in pkgutil.walk_packages(package.__path__, "trtllm_hpc.") if imported(found.name)
    ]
    assert type_in("--version").strip().endswith(version)
    for words in (
        ["jobs", "list"],
        ["versions"],
        ["schema", "job"],
        ["render", "tiny-llama", "--cluster", "local"],
    ):
        assert type_in(*words)
    Path("rank.log").write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    assert "memory" in type_in("explain", "rank.log", code=1)
    serve_and_measure()
    print(
        f"Python {sys.version.split()[0]}: {len(modules)} modules imported; "
        "a server was submitted, asked and measured"
    )


def imported(name: str) -> bool:
    """Import a module. Return ``False`` if it needs a package of an extra, which is not installed."""
    if name == "trtllm_hpc.__main__":
        return False
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in OF_EXTRAS:
            raise
        return False
    return True


def type_in(*words: str, code: int = 0) -> str:
    """Type a command of the installation. Return what it prints."""
    done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, (
        f"trtllm-hpc {' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}"
    )
    return done.stdout


def serve_and_measure() -> None:
    """Take a server from its job file to a measurement, on this machine alone."""
    job = {
        "name": "installed",
        "model": {"path": str(Path.cwd())},
        "engine": {"backend": "command"},
        "serve": {
            "command": [sys.executable, __file__, "{port}", "serve"],
            "keep_running": True,
            "proxy": "none",
        },
        "companion": {"enabled": False},
    }
    Path("config.json").write_text('{"model_type": "llama"}')
    Path("job.yaml").write_text(json.dumps(job))
    type_in("submit", "job.yaml", "--cluster", "local", "--ignore", "model-files")
    try:
        assert "".join(WORDS) in type_in("client", "latest", "What is it?", "--wait-seconds", "60")
        measured = type_in("bench", "latest", "--concurrency", "2", "--requests", "20", *ANY_SPEED)
        assert "0 of 20" in measured
    finally:
        type_in("cancel", "latest")


async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answer in OpenAI's protocol, always the same."""
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response, StreamingResponse

    if scope["type"] != "http":
        return
    request = Request(scope, receive)
    response: Response = Response()
    if request.url.path == "/v1/models":
        response = JSONResponse({"object": "list", "data": [{"id": "installed"}]})
    elif request.method == "POST":
        asked = await request.json()
        response = StreamingResponse(events(), media_type="text/event-stream")
        if not asked.get("stream"):
            response = JSONResponse(completion("".join(WORDS)))
    await response(scope, receive, send)


def completion(text: str, **more: Any) -> dict[str, Any]:
    """Return an answer, or a piece of a streamed answer."""
    choice = {"index": 0, "text": text, "finish_reason": None} | more
    usage = {"prompt_tokens": 4, "completion_tokens": len(WORDS), "total_tokens": 4 + len(WORDS)}
    return {
        "id": "1",
        "object": "text_completion",
        "created": 1,
        "model": "installed",
        "choices": [choice],
        "usage": usage,
    }


async def events() -> AsyncIterator[str]:
    """Yield an answer word by word."""
    for word in WORDS:
        yield f"data: {json.dumps(completion(word))}\n\n"
        await asyncio.sleep(0.002)
    yield f"data: {json.dumps(completion('', finish_reason='stop'))}\n\ndata: [DONE]\n\n"


if __name__ == "__main__":
    if sys.argv[2:] == ["serve"]:
        importlib.import_module("uvicorn").run(application, host="127.0.0.1", port=int(sys.argv[1]))
    else:
        main()
