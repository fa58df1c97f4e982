"""The command of docs/how-to/gateway.md; it asks for ``continuous_usage_stats``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.reference.other_clients.asking import MODEL, URL, show

FILE = Path(os.environ["ASKED_FOLDER"], "guidellm.json")

for path in ("chat/completions", "completions"):
    server = f"kind=openai_http,target={URL.removesuffix('/v1')},model={MODEL}"
    words = {
        "backend": f"{server},request_format=/v1/{path}",
        "profile": "kind=concurrent,streams=2",
        "constraint": "kind=max_requests,count=20",
        "tokenizer": f"kind=huggingface_auto,model={os.environ['ASKED_TOKENIZER']}",
        "data": "kind=synthetic_text,prompt_tokens=20,output_tokens=8",
        "output": f"kind=json,path={FILE}",
    }
    options = [f"--{name}={word}" for name, word in words.items()]
    command = [str(Path(sys.executable).with_name("guidellm")), "run", "--disable-console", *options]
    subprocess.run(command, check=True)
    [measured] = json.loads(FILE.read_text(encoding="utf-8"))["benchmarks"]
    found = measured["requests"]
    show(path, {kind: len(found[kind]) for kind in ("successful", "errored", "incomplete")})
