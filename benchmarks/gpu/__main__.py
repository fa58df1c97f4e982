"""A real engine on a real GPU: vLLM, served, measured, compared and broken under a real Slurm.

    trtllm-hpc sandbox up --nodes 1 --gpus real
    export SLURM_CONF=/run/trtllm-hpc/default/etc/slurm.conf
    python -m benchmarks.gpu /scratch/gpu --vllm /opt/vllm/vllm --gpus 2

Each story runs singly (``--only NAME``) in less than eight minutes and adds its figures to ``gpu.json``; a
story that is in the file is not run again. The page ``gpu.md`` is written from that file, for which
``--only`` without a name is enough. SmolLM2 is the model of ``trtllm-hpc models fetch smollm2``; the 8B shape
is a Llama of 32 layers with random weights and SmolLM2's tokenizer: its speed is that of a real one, its
answers mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu.machine import Machine
from benchmarks.gpu.page import written
from benchmarks.gpu.stories import STORIES

_DOCS = Path(__file__).parents[2] / "docs" / "explanation"


def main() -> None:
    """Run the stories that are asked for and have not been run, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="for job files and runs")
    parser.add_argument("--vllm", default=shutil.which("vllm") or "vllm", help="the program")
    parser.add_argument("--only", nargs="*", default=list(STORIES), choices=list(STORIES), metavar="NAME")
    parser.add_argument("--gpus", type=int, default=1, help="GPUs of the sandbox's node")
    parser.add_argument("--out", type=Path, default=_DOCS, help="folder of gpu.json and gpu.md")
    options = parser.parse_args()
    folder, file = options.folder.absolute(), options.out / "gpu.json"
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for name in options.only:
        if name in results:
            continue
        begun = time.time()
        figures = STORIES[name](Machine(folder, options.vllm, options.gpus))
        about = {
            "date": time.strftime("%Y-%m-%d"),
            "took_s": round(time.time() - begun),
            **_versions(options.vllm),
        }
        results[name] = {**about, **figures}
        file.write_text(json.dumps(results, indent=1) + "\n")
    (options.out / "gpu.md").write_text(written(results, STORIES))


def _versions(vllm: str) -> dict[str, str]:
    """Return the card, the driver and vLLM's version."""

    def printed(*command: str) -> str:
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout.strip()

    cards = printed("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").splitlines()
    card, _, driver = cards[0].partition(", ") if cards else ("none", "", "")
    return {
        "card": f"{len(cards)} x {card}",
        "driver": driver,
        "vllm": printed(vllm, "--version").splitlines()[-1:][0] if os.access(vllm, os.X_OK) else "",
    }


if __name__ == "__main__":
    main()
