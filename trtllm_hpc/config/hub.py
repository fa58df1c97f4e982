"""Models of a hub: where a site keeps them, and which of their files are there.

<models>/org--name/<commit>/hub.json     the files of the commit, as the hub lists them
                            name/        the model's folder, with each file once it is whole
                            partial/     what ``snapshot_download`` writes, until all hashes were compared
                            lock         held by the process that downloads, and names its host
                            uses/, used  the runs that use the model, see ``runtime.engine_cache.cache``
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trtllm_hpc.errors import ExitCode, TrtllmHpcError
from trtllm_hpc.runtime.engine_cache.cache import size_fault
from trtllm_hpc.runtime.engine_cache.keys import HUB_RECORD, WEIGHTS
from trtllm_hpc.runtime.records import JsonRecord

PARTIAL = "partial"
INCOMPLETE = ".cache/huggingface/download/**/*.incomplete"
"""Files in ``partial/`` that ``huggingface_hub`` is writing."""

HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
"""A model's name of a hub, which looks like a relative path."""


class HubFailed(TrtllmHpcError, exit_code=ExitCode.CONFIG):
    """A model of a hub cannot be found or downloaded."""


@dataclass(frozen=True)
class HubModel(JsonRecord):
    """One commit of a model, as the hub describes it."""

    hub: str
    commit: str
    revisions: dict[str, float]
    """Names that have meant this commit, and when the hub was asked."""
    files: dict[str, tuple[int, str]]
    """The files that a server needs: size in bytes, and SHA-256 or Git's hash."""

    def missing(self, folder: Path, *, weights: bool = True) -> dict[str, tuple[int, str]]:
        """Return the files that are not in the model's folder, of all or of all but the ``weights``."""
        names = [name for name in self.files if weights or not name.endswith(WEIGHTS)]
        return {
            name: self.files[name] for name in names if size_fault(folder / name, name, self.files[name][0])
        }

    def downloaded(self, folder: Path) -> str:
        """Return how much of the model is in its folder, for people."""
        total, missing = (sum(size for size, _ in it.values()) for it in (self.files, self.missing(folder)))
        partial = folder.parent / PARTIAL
        parts = [*partial.glob(INCOMPLETE), *map(partial.joinpath, self.files)]
        here = total - missing
        for part in parts:
            with suppress(FileNotFoundError):
                here += part.stat().st_size
        return f"{here / 2**30:.2f} of {total / 2**30:.2f} GiB are downloaded"


def models_folder(named: str | None, runs_folder: Path) -> Path:
    """Return the folder of models: ``named``, ``$TRTLLM_HPC_MODELS``, or ``models`` beside the runs."""
    beside = runs_folder.absolute().parent / "models"
    return Path(named or os.environ.get("TRTLLM_HPC_MODELS") or beside).absolute()


def folder_of(models: Path, hub: str, commit: str) -> Path:
    """Return a model's folder, which has the model's name."""
    return models / hub.replace("/", "--") / commit / hub.rpartition("/")[2]


def record_of(folder: str | Path | None) -> HubModel | None:
    """Return what is known of a model's folder; ``None`` if it is not from a hub."""
    return HubModel.read(Path(folder).parent / HUB_RECORD) if folder is not None else None


def known_models(models: Path, hub: str = "*") -> Iterator[tuple[Path, HubModel]]:
    """Yield folder and record of each model in the folder of models, or of each commit of one model."""
    for path in sorted(models.glob(f"{hub.replace('/', '--')}/*/{HUB_RECORD}")):
        if (record := HubModel.read(path)) is not None:
            folder = folder_of(models, record.hub, record.commit)
            if folder.parent == path.parent:  # not one that an interrupted removal has left
                yield folder, record
