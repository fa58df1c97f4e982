"""Others' clients, unchanged and pinned, at the gateway: the table in docs/how-to/gateway.md."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.environments import environment

from .other_clients.asking import COMPLETION, MESSAGES, MODEL, TOKENS
from .test_gateway import Gateway
from .test_gateway import endpoint as endpoint
from .test_gateway import gateway as gateway
from .test_gateway import run as run
from .test_gateway import tokenizer_folder as tokenizer_folder

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class OtherClient:
    name: str
    """On the page."""
    package: str
    version: str
    script: str
    """In ``other_clients/``; prints a line for each question."""
    shows: dict[str, object]
    """By question; ``$chat`` and ``$completion`` stand for what the official client got."""
    further: tuple[str, ...] = ()
    """Further requirements."""

    @property
    def requirements(self) -> list[str]:
        return [f"{self.package}=={self.version}", *self.further]


REFUSED_FORMAT = "response_format is not supported"
ALL_12 = [12, [], 12, 12]
"""Requests, errors, and the fewest and most tokens of an answer."""
CLIENTS = (
    OtherClient(
        "openai (Python)",
        "openai",
        "3.54.0",
        "ask_openai",
        {
            **{"chat": "$chat", "stream": "$chat", "completion": "$completion", "history": 1},
            "parse": ["BadRequestError", REFUSED_FORMAT],
        },
    ),
    OtherClient(
        "LiteLLM",
        "litellm",
        "1.110.2",
        "ask_litellm",
        {
            **{"chat": "$chat", "stream": "$chat", "acompletion": "$chat", "completion": "$completion"},
            **{"history": 1, "tools none": "$chat"},
            "tools": ["BadRequestError", "tools is not supported"],
            "json": ["BadRequestError", REFUSED_FORMAT],
            "far too long": ["ContextWindowExceededError", "maximum context length is 512"],
        },
    ),
    OtherClient(
        "LangChain (langchain-openai)",
        "langchain-openai",
        "1.7.4",
        "ask_langchain",
        {
            **{"invoke": "$chat", "stream": "$chat", "batch": ["$chat", "$chat"]},
            **{"completion": "$completion", "history": "length", "tools none": "$chat"},
            "tools": ["OpenAIInvalidRequestError", "tools is not supported"],
            "json_schema refused": ["OpenAIInvalidRequestError", REFUSED_FORMAT],
            "function_calling refused": ["OpenAIInvalidRequestError", "tool_choice is not supported"],
        },
    ),
    OtherClient(
        "lm_eval",
        "lm_eval[api]",
        "0.4.13",
        "ask_lm_eval",
        {"local-completions": 1.0, "local-chat-completions": 1.0},
        (f"transformers=={version('transformers')}",),
    ),
    OtherClient(
        "AIPerf",
        "aiperf",
        "0.13.0",
        "measure_with_aiperf",
        {
            **{"chat": ALL_12, "completions": ALL_12},
            **{"chat tokens of a prompt": True, "completions tokens of a prompt": True},
        },
    ),
)


def test_the_page_has_each_client_and_its_version() -> None:
    page = ROOT.joinpath("docs", "how-to", "gateway.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| ([^|]+?) \| (\d[\d.]+) \|", page)
    assert rows == [(client.name, client.version) for client in CLIENTS]


@pytest.fixture(scope="module")
def answers(gateway: Gateway) -> dict[str, str]:
    """What the official client of this environment gets."""
    greedy: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": TOKENS}
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none") as client:
        chat = client.chat.completions.create(messages=MESSAGES, **greedy)
        completion = client.completions.create(prompt=COMPLETION, **greedy)
    return {"$chat": chat.choices[0].message.content, "$completion": completion.choices[0].text}


def meant(value: object, answers: dict[str, str]) -> object:
    if isinstance(value, list):
        return [meant(each, answers) for each in value]
    return answers.get(value, value) if isinstance(value, str) else value


@pytest.mark.triton
@pytest.mark.thorough
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.package)
def test_a_client_is_answered(
    client: OtherClient,
    gateway: Gateway,
    answers: dict[str, str],
    tokenizer_folder: Path,
    tmp_path: Path,
) -> None:
    python = environment(client.package, client.requirements)
    asked = {
        "ASKED_URL": f"{gateway.url}/v1",
        "ASKED_TOKENIZER": str(tokenizer_folder),
        "ASKED_FOLDER": str(tmp_path),
        "ASKED_FOR_CHAT": answers["$chat"],
        "ASKED_FOR_COMPLETION": answers["$completion"],
    }
    alone = {
        **dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "DO_NOT_TRACK"), "1"),
        **dict.fromkeys(("HOME", "HF_HOME", "LLM_USER_PATH"), str(tmp_path)),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "OPENAI_API_KEY": "none",
    }
    command = [str(python), "-m", f"tests.reference.other_clients.{client.script}"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **alone, **asked}, capture_output=True, text=True, timeout=300
    )
    lines = [line.partition(": ") for line in done.stdout.splitlines()]
    shown = {name: json.loads(value) for name, _, value in lines if name in client.shows}
    expected = {name: meant(value, answers) for name, value in client.shows.items()}
    assert (done.returncode, shown) == (0, expected), done.stdout + done.stderr
