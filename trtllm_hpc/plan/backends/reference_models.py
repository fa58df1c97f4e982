"""What the reference backend puts into a model repository.

The models' code is read as text and never imported here: rendering works on machines without torch.
"""

from __future__ import annotations

from importlib import resources

MODELS: tuple[str, ...] = (
    "ensemble",
    "preprocessing",
    "tensorrt_llm",
    "postprocessing",
    "tensorrt_llm_bls",
)
"""Every model of the repository; each has a ``config.pbtxt`` and a ``1/model.py``."""


def model_source(name: str) -> str:
    """Text of the Python file that belongs at ``<repository>/<name>/1/model.py``.

    Raises:
        KeyError: the backend has no model of that name.
    """
    if name not in MODELS:
        raise KeyError(name)
    return (resources.files("trtllm_hpc.reference") / "models" / f"{name}.py").read_text(encoding="utf-8")
