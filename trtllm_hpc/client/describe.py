"""What a served model takes and how it answers, as the server tells."""

from __future__ import annotations

from dataclasses import dataclass

from trtllm_hpc.client.http import call_json
from trtllm_hpc.client.tensors import LLM_API_LENGTH, TextModel
from trtllm_hpc.runtime.records import Endpoint


@dataclass(frozen=True)
class ServedModel:
    """A model's configuration, as far as a client needs it."""

    inputs: frozenset[str]
    """Names of its inputs."""
    batched: bool
    """Whether these have a batch dimension."""
    decoupled: bool
    """Whether a request may have any number of responses: then only streaming calls are answered."""

    @property
    def text(self) -> TextModel:
        """How a text model of these inputs is asked."""
        return TextModel(LLM_API_LENGTH in self.inputs, self.batched)

    @property
    def takes_text(self) -> bool:
        """Whether it takes a text, and not token ids."""
        return "text_input" in self.inputs


def describe(endpoint: Endpoint, model: str, timeout_s: float) -> ServedModel:
    """Ask the server for the model's configuration.

    Raises:
        RequestFailed: with the server's own words, e.g. that it has no such model.
    """
    from urllib.parse import quote

    config = call_json(endpoint, f"v2/models/{quote(model, safe='')}/config", timeout_s)
    names = frozenset(str(tensor.get("name")) for tensor in config.get("input", ()))
    policy = config.get("model_transaction_policy", {})
    return ServedModel(names, bool(config.get("max_batch_size", 0)), bool(policy.get("decoupled", False)))
