"""What can be learned from a model's folder, where this machine can read it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def read_model_config(folder: str | None) -> Mapping[str, Any] | None:
    """The model's ``config.json``; ``None`` if there is no folder, or it cannot be read here.

    A login node need not see what the compute nodes see, so that is no error.
    """
    if folder is None:
        return None
    try:
        config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) else None
