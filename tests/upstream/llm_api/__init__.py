"""Stand-ins of the programs that serve with TensorRT-LLM's LLM API."""

from __future__ import annotations

from pathlib import Path

LAUNCHER = Path(__file__).with_name("trtllm-llmapi-launch")
NEW_LAUNCHER = Path(__file__).with_name("trtllm-llmapi-launch-1.3")
SERVE = Path(__file__).with_name("trtllm_serve.py")
NODES = Path(__file__).with_name("nodes.py")
