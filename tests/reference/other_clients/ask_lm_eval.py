"""``lm_eval`` with a task of one question whose right answer is the model's own: nothing is downloaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.reference.other_clients.asking import CHAT, COMPLETION, MODEL, TOKENS, URL, show

FOLDER, TOKENIZER = Path(os.environ["ASKED_FOLDER"]), os.environ["ASKED_TOKENIZER"]


def write_task(name: str, question: str, answer: str) -> None:
    data = FOLDER / f"{name}.json"
    data.write_text(json.dumps([{"question": question, "answer": answer}] * 3), encoding="utf-8")
    task = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["never there"], "max_gen_toks": TOKENS, "temperature": 0},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }
    (FOLDER / f"{name}.yaml").write_text(json.dumps(task), encoding="utf-8")  # JSON is YAML


def measure(name: str, model: str, path: str, *options: str) -> None:
    given = f"model={MODEL},base_url={URL}/{path},num_concurrent=2,max_length=512,tokenizer={TOKENIZER}"
    given += ",add_bos_token=True"  # it sends token ids
    command = [str(Path(sys.executable).with_name("lm_eval")), "--model", model, "--model_args", given]
    command += ["--tasks", name, "--include_path", str(FOLDER), "--output_path", str(FOLDER / name), *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    results = list((FOLDER / name).rglob("results_*.json"))
    assert done.returncode == 0 and len(results) == 1, done.stdout
    show(model, json.loads(results[0].read_text(encoding="utf-8"))["results"][name]["exact_match,none"])


write_task("completes", COMPLETION, os.environ["ASKED_FOR_COMPLETION"])
measure("completes", "local-completions", "completions")
write_task("chats", CHAT, os.environ["ASKED_FOR_CHAT"])
measure("chats", "local-chat-completions", "chat/completions", "--apply_chat_template")
