"""Downloaded hub models: their folders, and which of their files are complete.

<models>/org--name/<commit>/hub.json     the files of the commit, as the hub lists them
                            name/        the model's folder; a file appears here once it is complete
                            partial/     files of ``snapshot_download`` until their hashes are checked
                            lock         held by the downloading process; has the name of its host
                            uses/, used  runs that use the model, see ``runtime.engine_cache.cache``
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
"""Pattern of unfinished files in ``partial/``, as ``huggingface_hub`` names them."""

HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
"""Name of a hub model, which also matches a relative path."""


class HubFailed(TrtllmHpcError, exit_code=ExitCode.CONFIG):
    """A hub model cannot be found or downloaded."""


@dataclass(frozen=True)
class HubModel(JsonRecord):
    """The hub's description of one commit of a model."""

    hub: str
    commit: str
    revisions: dict[str, float]
    """Branches and tags that pointed to this commit, with the time of that answer from the hub."""
    files: dict[str, tuple[int, str]]
    """Files that a server needs: size in bytes, and SHA-256 or Git hash."""

    def missing(self, folder: Path, *, weights: bool = True) -> dict[str, tuple[int, str]]:
        """Return the files that the model's folder lacks; ``weights=False`` ignores weights."""
        names = [name for name in self.files if weights or not name.endswith(WEIGHTS)]
        return {
            name: self.files[name] for name in names if size_fault(folder / name, name, self.files[name][0])
        }

    def downloaded(self, folder: Path) -> str:
        """Return a sentence with the downloaded and total size of the model in GiB."""
        total, missing = (
            sum(size for size, _ in files.values()) for files in (self.files, self.missing(folder))
        )
        partial = folder.parent / PARTIAL
        parts = [*partial.glob(INCOMPLETE), *map(partial.joinpath, self.files)]
        here = total - missing
        for part in parts:
            with suppress(FileNotFoundError):
                here += part.stat().st_size
        return f"{here / 2**30:.2f} of {total / 2**30:.2f} GiB are downloaded"


def models_folder(named: str | None, runs_folder: Path) -> Path:
    """Return the folder of all models: ``named``, else ``$TRTLLM_HPC_MODELS``, else beside the runs."""
    beside = runs_folder.absolute().parent / "models"
    return Path(named or os.environ.get("TRTLLM_HPC_MODELS") or beside).absolute()


def folder_of(models: Path, hub: str, commit: str) -> Path:
    """Return the folder of one commit's files; its last part is the model's name."""
    return models / hub.replace("/", "--") / commit / hub.rpartition("/")[2]


def record_of(folder: str | Path | None) -> HubModel | None:
    """Return the record of a model's folder; ``None`` if the model is not from a hub."""
    return HubModel.read(Path(folder).parent / HUB_RECORD) if folder is not None else None


def known_models(models: Path, hub: str = "*") -> Iterator[tuple[Path, HubModel]]:
    """Yield folder and record of each commit of all models, or of the model ``hub``."""
    for path in sorted(models.glob(f"{hub.replace('/', '--')}/*/{HUB_RECORD}")):
        if (record := HubModel.read(path)) is not None:
            folder = folder_of(models, record.hub, record.commit)
            if folder.parent == path.parent:  # else an interrupted removal left this folder
                yield folder, record
