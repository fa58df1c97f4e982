"""Check that an evaluation fails a worse server and passes an equal one, on the sandbox through ``submit``.

    SLURM_CONF=/run/trtllm-hpc/NAME/etc/slurm.conf python -m benchmarks.evaluation /tmp/evaluation

The shipped task is sent to SmolLM2 behind Triton with the gateway (``base``); behind ``transformers serve``
(``peer``), whose answers must be as good; and behind three servers that were made worse: another chat
template, noise in the weights of a layer, temperature 1. Last, an evaluation is killed half-way and resumed.
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
"""Number of questions; the shipped task has 200. Set a smaller number on a busy machine."""
SERVE, OPTIONS = (str(BIN / "transformers"), "serve"), ("--device=cpu", "--dtype=float32")
DISTURBED = "model.layers.12.mlp.down_proj.weight"


def job(folder: Path, name: str, base: str | None, *, model: Path = SMOLLM2, warm: bool = False) -> Path:
    """Write a job file. ``transformers serve`` is the server of ``peer`` and of a ``warm`` job."""
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
    """Submit a job and return its run; ``words`` are further options, e.g. ``--wait``."""
    options = ["--cluster", "sandbox", "--set", f"cluster.slurm_conf={os.environ['SLURM_CONF']}", *words]
    command = [str(BIN / "trtllm-hpc"), "submit", str(file), *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    lines = done.stdout.splitlines()
    return RunPaths(next(line.split()[-1] for line in lines if line.startswith("  folder")))


def result(run: RunPaths) -> str:
    """Return the score and the exit code of ``submit --wait`` in words."""
    summary = read_evaluation(run.evaluation())
    code = Run(run).status.exit_code
    return f"{run.run_id}: exit code {int(code)}, " + ("no scores" if summary is None else summary.lines()[0])


def equal_answers(base: RunPaths, peer: RunPaths) -> str:
    """Return in words how many answers of two runs to the same questions are equal."""

    def answers(run: RunPaths) -> dict[str, str]:
        by_question: dict[str, str] = {}
        for line in run.evaluation(kind="answers.jsonl").read_text().splitlines():
            by_question |= json.loads(line)
        return by_question

    first, second = answers(base), answers(peer)
    common = first.keys() & second.keys()
    same = sum(first[key].strip() == second[key].strip() for key in common)
    return f"{same} of {len(common)} answers of {base.run_id} and {peer.run_id} are equal"


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
    """Replace the chat template by the template of another model family."""
    text = "{% for message in messages %}[INST] {{ message.content }} [/INST]\n{% endfor %}"
    (model / "chat_template.jinja").write_text(text)
    _change(model / "tokenizer_config.json", chat_template=text)


def sampling(model: Path) -> None:
    """Switch on sampling in the model's generation config, which ``transformers serve`` reads."""
    _change(model / "generation_config.json", do_sample=True, temperature=1.0)


def _change(file: Path, **fields: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


WORSE = {"template": with_another_template, "weights": disturbed, "temperature": sampling}
"""The function that makes the model of each server worse."""


def killed_and_resumed(folder: Path) -> str:
    """Kill the companion's step half-way, and resume; resume must send only the missing questions."""
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
    return f"killed with {kept} answers; resume kept {summary.kept} and sent {summary.asked} questions"


def warm_server(model: str, host: str, port: int) -> None:
    """Serve a model with ``transformers serve`` behind a proxy that sets temperature 1 in every chat."""
    behind = port + 1 if port < 65_000 else port - 1
    server = subprocess.Popen([*SERVE, model, *OPTIONS, "--host=127.0.0.1", f"--port={behind}"])

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self, body: bytes | None) -> None:
            request = Request(f"http://127.0.0.1:{behind}{self.path}", body)
            request.add_header("Content-Type", "application/json")
            try:
                with urlopen(request, timeout=600) as answer:
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
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path.endswith("/chat/completions"):
                body |= {"temperature": 1.0}
            self._pass_on(json.dumps(body).encode())

    proxy = ThreadingHTTPServer((host, port), Handler)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    sys.exit(server.wait())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="folder for job files, models and runs")
    parser.add_argument("--base", type=Path, help="folder of an earlier run `base`, to use its answers again")
    names = ("peer", *WORSE, "resume")
    parser.add_argument("--only", nargs="*", default=names, choices=names, help="by default all")
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
