from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.reference.other_clients.asking import MODEL, URL, show

FOLDER = Path(os.environ["ASKED_FOLDER"])

words = {
    "api-backend": "openai",
    "api-base": URL.removesuffix("/v1"),
    "api-key": "none",
    "api-model-name": MODEL,
    "model-tokenizer": os.environ["ASKED_TOKENIZER"],
    "task": "text-to-text",
    "traffic-scenario": "D(20,8)",
    "num-concurrency": "2",
    "max-time-per-run": "1",
    "max-requests-per-run": "10",
    # It takes an answer without text for a fault.
    "additional-request-params": json.dumps({"min_tokens": 8}),
    "experiment-base-dir": str(FOLDER),
}
options = [word for name, value in words.items() for word in (f"--{name}", value)]
program = str(Path(sys.executable).with_name("genai-bench"))
subprocess.run([program, "benchmark", *options], cwd=FOLDER, check=True)  # for its log
for file in FOLDER.rglob("*concurrency*.json"):
    found = json.loads(file.read_text(encoding="utf-8"))["aggregated_metrics"]
    # It ends soon after the last request that it was asked for.
    show("requests", [found["num_completed_requests"] >= 10, found["num_error_requests"]])
