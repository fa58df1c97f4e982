"""The command ``llm``, with the models of ``extra-openai-models.yaml`` in the folder $LLM_USER_PATH."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.reference.other_clients.asking import CHAT, COMPLETION, MODEL, TOKENS, URL, show

models = [
    {"model_id": "chats", "model_name": MODEL, "api_base": URL},
    {"model_id": "completes", "model_name": MODEL, "api_base": URL, "completion": True},
]
file = Path(os.environ["LLM_USER_PATH"], "extra-openai-models.yaml")
file.write_text(json.dumps(models), encoding="utf-8")  # JSON is YAML


def ask(model: str, question: str, *options: str) -> str:
    greedy = ["-o", "temperature", "0", "-o", "max_tokens", str(TOKENS), "--key", "none"]
    command = [str(Path(sys.executable).with_name("llm")), "-m", model, *greedy, *options, question]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.removesuffix("\n")


show("chat", ask("chats", CHAT, "--no-stream"))
show("stream", ask("chats", CHAT))
show("completion", ask("completes", COMPLETION))
