"""LoRA adapters that requests of the companion name."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trtllm_hpc.config.types import AbsolutePath, OneLine, Section


class LoraAdapter(Section):
    """A LoRA adapter as ``hf_lora_convert.py`` writes it: a folder, or an adapter that the build converts."""

    directory: AbsolutePath | None = None
    """Folder with ``model.lora_weights.npy`` and ``model.lora_config.npy``."""
    adapter: OneLine | None = None
    """Instead of ``directory``: the folder name of an entry of ``engine.lora.adapters``, which the build
    converts."""
    task_id: Annotated[int, Field(ge=0, le=2**64 - 1)] | None = None
    """Number by which the server knows the adapter, its own. ``None``: 1, or the place in a list."""

    def number(self, place: int) -> int:
        """Return the task id; ``place`` if there is none."""
        return place if self.task_id is None else self.task_id


class LoraShare(LoraAdapter):
    """An adapter of a benchmark's requests."""

    share: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of the requests. ``None``: an equal part of what is left, as the requests without adapter get."""
