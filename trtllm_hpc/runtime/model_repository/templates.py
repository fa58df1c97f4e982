"""Where upstream's model templates lie: in an image, a checkout or a repository that somebody made."""

from __future__ import annotations

from pathlib import Path

CONFIG = "config.pbtxt"

_BELOW = ("", "all_models", "triton_backend/all_models", "tensorrt_llm/triton_backend/all_models")
"""An image's ``all_models`` itself; a checkout of tensorrtllm_backend up to 0.19; one of TensorRT-LLM
since; and that as the former's submodule."""

_LEFT_OUT = ("__pycache__", ".tmp", ".gitkeep", CONFIG)


def find_all_models(folder: Path) -> Path | None:
    """The folder of templates in ``folder``: by groups as upstream has it, or with the models themselves."""
    for below in _BELOW:
        candidate = folder / below if below else folder
        if any(candidate.glob(f"*/*/{CONFIG}")) or any(candidate.glob(f"*/{CONFIG}")):
            return candidate
    return None


def template_folder(all_models: Path, template: str) -> Path | None:
    """The folder of one template, ``<group>/<model>``; a repository without groups has the model itself."""
    for candidate in (all_models / template, all_models / template.rpartition("/")[2]):
        if (candidate / CONFIG).is_file():
            return candidate
    return None


def template_files(folder: Path) -> dict[str, Path]:
    """What a model needs beside its configuration, by path relative to its folder.

    Engines stay where they are: upstream's oldest workflow copies them into
    ``tensorrt_llm/1``, and the configuration names their folder anyway.
    """
    return {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.suffix != ".engine"
        and not set(path.relative_to(folder).parts) & set(_LEFT_OUT)
    }
