"""Does an evaluation find a worse server, and leave an equal one alone? On the sandbox, through ``submit``.

    SLURM_CONF=/run/trtllm-hpc/NAME/etc/slurm.conf python -m benchmarks.evaluation /tmp/evaluation

SmolLM2 is asked the shipped task behind Triton with the gateway (``base``); behind ``transformers serve``
(``peer``), which must answer alike; and behind three servers that were made worse: another chat template, one
layer's weights disturbed, temperature 1. At last an evaluation is killed half-way and resumed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from trtllm_hpc.api.run import Run
from trtllm_hpc.evaluation.scores import read_evaluation
from trtllm_hpc.paths import RunPaths, read_json
from trtllm_hpc.runs.fetched_models import default_folder

BIN = Path(sys.executable).parent
SMOLLM2 = default_folder("smollm2")
QUESTIONS = int(os.environ.get("QUESTIONS", "200"))
"""Fewer on a busy machine; the shipped task has 200."""
SERVE, OPTIONS = (str(BIN / "transformers"), "serve"), ("--device=cpu", "--dtype=float32")
DISTURBED = "model.layers.12.mlp.down_proj.weight"


def job(folder: Path, name: str, base: str | None, *, model: Path = SMOLLM2, warm: bool = False) -> Path:
    """Write a job file; ``peer`` and a ``warm`` server are ``transformers serve``."""
    evaluate = {"tasks": ["facts"], "concurrency": 8, "not_worse_than": base, "limit": QUESTIONS}
    companion = {"time_limit_minutes": 60, "benchmark": None}
    serve: dict[str, Any] = {"ready_timeout_seconds": 900}
    whole = {"name": name, "model": {"path": str(model)}, "companion": {**companion, "evaluate": evaluate}}
    if name == "peer" or warm:
        program = [sys.executable, str(Path(__file__).absolute()), "--serve", "{model}"]
        command = program if warm else [*SERVE, "{model}", *OPTIONS]
        serve |= {"command": [*command, "--host={address}", "--port={port}"]}
        serve |= {"environment": {"HF_HUB_OFFLINE": "1"}}
        whole["engine"] = {"backend": "command", "max_batch_size": 8, "max_seq_len": 2048}
    else:
        whole["extends"] = "smollm2"
    file = folder / f"{name}.yaml"
    file.write_text(json.dumps({**whole, "serve": serve}))
    return file


def submit(file: Path, *words: str) -> RunPaths:
    """Submit a job, and wait for its end."""
    options = ["--cluster", "sandbox", "--set", f"cluster.slurm_conf={os.environ['SLURM_CONF']}", *words]
    command = [str(BIN / "trtllm-hpc"), "submit", str(file), *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    run = RunPaths(next(line.split()[-1] for line in done.stdout.splitlines() if line.startswith("  folder")))
    return run


def result(run: RunPaths) -> str:
    """Return the score in words, with the exit code that ``submit --wait`` has."""
    summary = read_evaluation(run.evaluation())
    code = Run(run).status.exit_code
    return f"{run.run_id}: exit code {int(code)}, " + ("no scores" if summary is None else summary.lines()[0])


def equal_answers(one: RunPaths, other: RunPaths) -> str:
    """Return the share of equal answers to the same questions."""

    def answers(run: RunPaths) -> dict[str, str]:
        found: dict[str, str] = {}
        for line in run.evaluation(kind="answers.jsonl").read_text().splitlines():
            found |= json.loads(line)
        return found

    first, second = answers(one), answers(other)
    common = first.keys() & second.keys()
    same = sum(first[key].strip() == second[key].strip() for key in common)
    return f"{same} of {len(common)} answers of {one.run_id} and {other.run_id} are equal"


def disturbed(model: Path) -> None:
    """Add noise to the weights of one layer."""
    import torch
    from safetensors.torch import load_file, save_file

    file = model / "model.safetensors"
    weights = load_file(file)
    weight = weights[DISTURBED].float()
    noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)) * weight.std() * 4
    weights[DISTURBED] = (weight + noise).to(weights[DISTURBED].dtype)
    save_file(weights, file, metadata={"format": "pt"})


def with_another_template(model: Path) -> None:
    """Let the chat template mark the turns as another family of models does."""
    text = "{% for message in messages %}[INST] {{ message.content }} [/INST]\n{% endfor %}"
    (model / "chat_template.jinja").write_text(text)
    _change(model / "tokenizer_config.json", chat_template=text)


def sampling(model: Path) -> None:
    """Let the model draw its tokens: ``transformers serve`` asks the model whether to."""
    _change(model / "generation_config.json", do_sample=True, temperature=1.0)


def _change(file: Path, **fields: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


WORSE = {"template": with_another_template, "weights": disturbed, "temperature": sampling}
"""How the model of each server is made worse."""


def killed_and_resumed(folder: Path) -> str:
    """Kill the companion's step half-way; resume asks only what is missing."""
    run = submit(job(folder, "resumed", None))
    file = run.evaluation(kind="answers.jsonl")
    while not file.exists() or file.read_bytes().count(b"\n") < QUESTIONS * 0.45:
        time.sleep(0.5)
    record: Any = read_json(run.jobs)
    subprocess.run(["scancel", "--signal=KILL", record["stages"]["companion"]["job_id"]], check=True)
    while not Run(run).status.settled:
        time.sleep(1)
    kept = file.read_bytes().count(b"\n")
    again = [str(BIN / "trtllm-hpc"), "resume", str(run.folder), "--wait"]
    subprocess.run(again, stdout=subprocess.DEVNULL, check=False)
    summary = read_evaluation(run.evaluation())
    assert summary is not None
    return f"killed with {kept} answers; resume kept {summary.kept} and asked {summary.asked}"


def warm_server(model: str, host: str, port: int) -> None:
    """Serve a model with ``transformers serve``, and answer every chat at temperature 1."""
    behind = port + 1 if port < 65_000 else port - 1
    server = subprocess.Popen([*SERVE, model, *OPTIONS, "--host=127.0.0.1", f"--port={behind}"])

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self, body: bytes | None) -> None:
            asked = Request(f"http://127.0.0.1:{behind}{self.path}", body)
            asked.add_header("Content-Type", "application/json")
            try:
                with urlopen(asked, timeout=600) as answer:
                    status, content, kind = answer.status, answer.read(), answer.headers["Content-Type"]
            except HTTPError as error:
                status, content, kind = error.code, error.read(), "application/json"
            except OSError:
                status, content, kind = 503, b"", "text/plain"
            self.send_response(status)
            self.send_header("Content-Type", kind or "text/plain")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_GET(self) -> None:
            self._pass_on(None)

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path.endswith("/chat/completions"):
                asked |= {"temperature": 1.0}
            self._pass_on(json.dumps(asked).encode())

    proxy = ThreadingHTTPServer((host, port), Handler)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    sys.exit(server.wait())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--base", type=Path, help="folder of a run that has asked the shipped task")
    names = ("peer", *WORSE, "resume")
    parser.add_argument("--only", nargs="*", default=names, choices=names)
    options = parser.parse_args()
    folder = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["TRTLLM_HPC_RUNS"] = str(folder / "runs" if options.base is None else options.base.parent)
    base = RunPaths(options.base) if options.base else submit(job(folder, "base", None), "--wait")
    print(result(base), flush=True)
    for name in options.only:
        if name == "resume":
            print(killed_and_resumed(folder), flush=True)
            continue
        model = SMOLLM2
        if name in WORSE:
            model = Path(shutil.copytree(SMOLLM2, folder / name, dirs_exist_ok=True))
            WORSE[name](model)
        is_warm = name == "temperature"
        run = submit(job(folder, name, base.run_id, model=model, warm=is_warm), "--wait")
        print(result(run), *([equal_answers(base, run)] if name == "peer" else []), sep="\n", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        model, host, port = sys.argv[2], *(word.partition("=")[2] for word in sys.argv[3:5])
        warm_server(model, host, int(port))
    main()
