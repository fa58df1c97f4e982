"""The command of docs/how-to/gateway.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.reference.other_clients.asking import MODEL, URL, show

# With it, AIPerf looks for a folder among its downloads.
online = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
for kind in ("chat", "completions"):
    folder = Path(os.environ["ASKED_FOLDER"], kind)
    asked = ["--model", MODEL, "--url", URL.removesuffix("/v1"), "--endpoint-type", kind, "--streaming"]
    tokens = ["--tokenizer", os.environ["ASKED_TOKENIZER"], "--isl", "30", "--osl", "12"]
    load = ["--concurrency", "4", "--request-count", "12", "--extra-inputs", "ignore_eos:true"]
    further = ["--use-server-token-count", "--ui", "none", "--output-artifact-dir", str(folder)]
    program = str(Path(sys.executable).with_name("aiperf"))
    subprocess.run([program, "profile", *asked, *tokens, *load, *further], env=online, check=True)
    found = json.loads((folder / "profile_export_aiperf.json").read_text(encoding="utf-8"))
    length = found["output_sequence_length"]
    show(kind, [found["request_count"]["avg"], found["error_summary"], length["min"], length["max"]])
    show(f"{kind} tokens of a prompt", found["input_sequence_length"]["min"] >= 30)
