"""What the scripts ask, and how they print the answers. The clients' environments lack this project."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from typing import Any

MODEL = "tiny-llama"
CHAT = "Who wrote the letter?"
COMPLETION = "What is machine learning?"
TOKENS = 12
URL = os.environ.get("ASKED_URL", "")
MESSAGES: list[Any] = [{"role": "user", "content": CHAT}]
FUNCTION = {"name": "look_up", "description": "Look up a name.", "parameters": {"type": "object"}}
TOOL: Any = {"type": "function", "function": FUNCTION}
CALL = {"id": "1", "type": "function", "function": {"name": "look_up", "arguments": '{"name": "A"}'}}
HISTORY: list[Any] = [
    *MESSAGES,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "A did."},
]


def show(name: str, answer: Any) -> None:
    """Print an answer on a line of its own."""
    print(f"{name}: {json.dumps(answer)}", flush=True)


def show_refusal(name: str, ask: Callable[[], Any]) -> None:
    """Print the error that a request ends with, and the key that it names."""
    try:
        answer = ask()
    except Exception as error:  # noqa: BLE001
        named = re.search(
            r"(no input for \w+|\w+ is not supported|maximum context length is \w+)", str(error)
        )
        show(name, [type(error).__name__, named[1] if named else str(error)])
    else:
        show(name, f"answered: {answer}")
