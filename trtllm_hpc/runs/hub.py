"""Models from a hub: located when a job is planned, downloaded before anything is queued.

``huggingface_hub`` is imported only for such a model. ``docs/explanation/decisions/project.md`` explains
why its cache is not used.
"""

from __future__ import annotations

import errno
import glob
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_hpc.config import hub as site
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.files import read_spec
from trtllm_hpc.config.hub import INCOMPLETE, PARTIAL, HubFailed, HubModel, known_models, record_of
from trtllm_hpc.config.job import JobFile, Model
from trtllm_hpc.errors import ExitCode
from trtllm_hpc.paths import RunPaths, own_runs_folder
from trtllm_hpc.runtime.engine_cache.cache import CREATION_S, CacheEntry, EntryHeld, Use
from trtllm_hpc.runtime.engine_cache.keys import HUB_RECORD, needed_files
from trtllm_hpc.runtime.engine_cache.shared_files import make_shared, remove, write_shared
from trtllm_hpc.runtime.records import try_event
from trtllm_hpc.tensorrt_llm.memory import gib
from trtllm_hpc.validation.load import Locate

_NEWS_S = 30.0
"""Seconds between two lines about another process's download."""
_POLL_S = 1.0
"""Seconds between two looks at another process's download."""


def runs_folder(cluster: ClusterProfile) -> Path:
    """Return the default folder of the runs, if the command line names none."""
    return own_runs_folder() or Path(cluster.runs_folder or "runs").absolute()


def locator(runs: Path | None) -> Locate:
    """Return a function that locates a job's model; it asks the hub once for each model."""
    located = dict[tuple[Any, ...], tuple[Path, HubModel]]()

    def locate(job: JobFile, cluster: ClusterProfile) -> JobFile:
        model = job.model
        if model.hub is None:
            return job
        models = site.models_folder(cluster.models_folder, runs or runs_folder(cluster))
        key = (models, model.hub, model.revision, model.token_file)
        folder, record = located[key] = located.get(key) or find(*key)
        model = model.model_copy(update={"path": str(folder), "revision": record.commit})
        return job.model_copy(update={"model": model})

    return locate


def find(models: Path, hub: str, revision: str | None, token_file: str | None) -> tuple[Path, HubModel]:
    """Return the folder of a model, with its small files downloaded, and its record; raise HubFailed.

    A known commit needs no request to the hub. ``models`` is the folder of all models; ``token_file`` is the
    job file's.
    """
    name = revision or "main"
    known = ((folder, record) for folder, record in known_models(models, hub) if record.commit == name)
    if (model := next(known, None)) is None:
        with _sentences(hub, name, token_file):
            model = _ask(models, hub, name, token_file)
    fetch(model[0], token_file, weights=False)
    return model


def _ask(models: Path, hub: str, name: str, token_file: str | None) -> tuple[Path, HubModel]:
    from huggingface_hub import HfApi

    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=_token(token_file))
    info = api.model_info(hub, revision=name, files_metadata=True, timeout=30)
    files = {
        file.rfilename: (file.size or 0, file.lfs.sha256 if file.lfs else str(file.blob_id))
        for file in info.siblings or ()
    }
    folder = site.folder_of(models, hub, str(info.sha))
    models.mkdir(parents=True, exist_ok=True)
    for path in (folder.parents[1], folder.parent, folder):
        make_shared(path)
    if (before := record_of(folder)) is not None and name in before.revisions:
        return folder, before  # write nothing: the folder may belong to another user
    revisions = {**(before.revisions if before else {}), name: time.time()}
    record = HubModel(hub, str(info.sha), revisions, {name: files[name] for name in needed_files(files)})
    write_shared(folder.parent / HUB_RECORD, vars(record))
    return folder, record


def download(model: Model, run: Path, *, leave: bool = False) -> bool:
    """Download the missing files of a located model for a run; raise HubFailed.

    With ``leave``, leave them to a job of the run. Return whether any files are left to it.
    """
    if model.hub is None or model.path is None:
        return False
    folder, record = Path(model.path), record_of(model.path)
    CacheEntry(folder.parent).register(run)
    if leave and record is not None and record.missing(folder):
        return True
    fetch(folder, model.token_file)
    return False


def main(run: str) -> int:
    """Download a run's model in the job of the stage ``download``; return the exit code."""
    paths = RunPaths(run)
    try:
        download(read_spec(paths.spec).model, paths.folder)
    except HubFailed as error:
        try_event(paths, "download", "failed", reason=error.message.rstrip("."), next=error.hint)
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return ExitCode.OK


def fetch(folder: Path, token_file: str | None, *, weights: bool = True) -> None:
    """Download the missing files of a folder from :func:`find`, or wait while another process does.

    After an interruption the next call continues. Raises HubFailed.
    """
    record = record_of(folder)
    assert record is not None
    entry, said_at = CacheEntry(folder.parent), -_NEWS_S
    with suppress(OSError):
        entry.used.touch()
    while missing := record.missing(folder, weights=weights):
        try:
            with _sentences(record.hub, record.commit, token_file), entry.locked(socket.gethostname()):
                # Ask again what is missing: another process may have just finished its download.
                _download(folder, record, record.missing(folder, weights=weights), _token(token_file))
            return
        except EntryHeld:
            holder = entry.holder() or "another process"
        if time.monotonic() - said_at >= _NEWS_S:
            said_at, left = time.monotonic(), gib(sum(size for size, _ in missing.values()))
            print(f"{record.hub}: {holder} is downloading {left}; waiting ...", file=sys.stderr, flush=True)
        time.sleep(_POLL_S)


@dataclass(frozen=True)
class ModelRow:
    """A model that was fetched, or can be fetched by its name alone."""

    name: str
    summary: str
    """Description; for a model from a hub, its commit and the commit's names."""
    licence: str | None
    """``None``: see the model's page on the hub."""
    folder: str
    fetched: bool
    """Whether all files of the model are in the folder."""
    bytes: int | None = None
    """Size of the model's files in the folder; ``None`` for a model that does not come from a hub."""
    last_used: float | None = None
    """Last request of the model, or last use by a run, in seconds since the epoch; ``None`` as above."""
    runs: tuple[str, ...] = ()
    """Folders of the runs whose job files name the model; empty for a model that does not come from a hub."""


def hub_rows(models: Path) -> list[ModelRow]:
    """Return the models from hubs in the folder of models, the last used first."""
    rows = []
    for folder, record in known_models(models):
        entry, missing = CacheEntry(folder.parent), record.missing(folder)
        size = sum(size for name, (size, _) in record.files.items() if name not in missing)
        marks = (entry.used, entry.folder / HUB_RECORD)
        used = max(mark.stat().st_mtime for mark in marks if mark.exists())
        summary = f"{record.commit} ({', '.join(record.revisions)})"
        runs = tuple(use.run for use in entry.uses() if names_model(str(folder))(use))
        rows.append(ModelRow(record.hub, summary, None, str(folder), not missing, size, used, runs))
    return sorted(rows, key=lambda row: -(row.last_used or 0.0))


def names_model(folder: str) -> Callable[[Use], str | None]:
    """Return a function that returns why a use of a model counts: the run's job file names the model.

    An unreadable job file of another user counts, too, and a run whose job file is still to be written.
    """

    def counts(use: Use) -> str | None:
        try:
            is_named = folder in RunPaths(use.run).spec.read_text(encoding="utf-8")
        except FileNotFoundError:
            is_named = use.age_s < CREATION_S and not use.has_folder
        except OSError:
            is_named = True
        return f"is named in the job file of {use.run}" if is_named else None

    return counts


def _download(
    folder: Path, record: HubModel, missing: Mapping[str, tuple[int, str]], token: str | None
) -> None:
    """Download files to a folder beside the model's, and move them to their places once all hashes match."""
    from huggingface_hub import HfApi

    partial = folder.parent / PARTIAL
    make_shared(partial)
    for leftover in partial.glob(INCOMPLETE):
        leftover.unlink()  # a killed process left it; the library begins such a file anew under another name
    total = sum(size for size, _ in missing.values())
    downloaded = sum(size for name, (size, _) in missing.items() if (partial / name).exists())
    free = shutil.disk_usage(folder).free
    if (left := total - downloaded) > free:
        raise _no_space(str(folder), f"{gib(left)} are still to download, and {gib(free)} are free")
    hub = HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=token)
    names = [glob.escape(name) for name in missing]
    commit: dict[str, Any] = {"revision": record.commit, "local_dir": partial}
    hub.snapshot_download(record.hub, **commit, allow_patterns=names)
    if total > 2**30:  # the comparison takes a second or more: a core hashes about 1 GB/s
        print(f"{record.hub}: comparing hashes with the hub's ...", file=sys.stderr, flush=True)
    mismatches = hub.verify_repo_checksums(record.hub, **commit).mismatches
    damaged = [mismatch["path"] for mismatch in mismatches]
    for name in damaged:
        (partial / name).unlink()
    if damaged:
        message = f"{', '.join(damaged)} of {record.hub}: the hash differs from the hub's."
        raise HubFailed(message, hint="the damaged file was removed; the same command downloads it again")
    for name in missing:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (partial / name).chmod(folder.stat().st_mode & 0o666)
        (partial / name).replace(folder / name)
    remove(partial)


def _token(token_file: str | None) -> str | None:
    """Return the token in a file; ``None`` without a file: the library then looks for the user's token."""
    if token_file is None:
        return None
    with suppress(OSError, UnicodeDecodeError):
        # Only text that is valid in a header: an error about an invalid header could quote the token.
        if found := re.fullmatch(r"\s*([!-~]+)\s*", Path(token_file).read_text(encoding="utf-8")):
            return found[1]
    message = f"The token file {token_file} cannot be read, or does not contain a token."
    raise HubFailed(message, hint="write the token, and nothing else, into it; then chmod 600")


@contextmanager
def _sentences(hub: str, revision: str, token_file: str | None) -> Iterator[None]:
    """Turn errors of the hub, the network and the disk into HubFailed."""
    try:
        from huggingface_hub import errors, get_session
    except ImportError:
        message, hint = "Models of a hub need the package huggingface_hub.", "pip install 'trtllm-hpc[hub]'"
        raise HubFailed(message, hint=hint) from None
    # The HTTP library that huggingface_hub uses: httpx, or httpx2 from huggingface_hub 2 on.
    httpx: Any = sys.modules[type(get_session()).__module__]
    try:
        yield
    except (errors.HfHubHTTPError, httpx.TransportError, OSError, ValueError, RuntimeError) as error:
        raise _sentence(error, hub, revision, token_file) from None


def _sentence(error: Any, hub: str, revision: str, token_file: str | None) -> HubFailed:
    from huggingface_hub import errors, get_token

    token = f"the token in {token_file}" if token_file else "your token" if get_token() else None
    why = f"{token} does not give access to it" if token else "no token was given"
    name_it = "" if token_file else "; name a file with your token: --set model.token_file=FILE"
    page = f"{os.environ.get('HF_ENDPOINT') or 'https://huggingface.co'}/{hub}"
    if isinstance(error, errors.LocalEntryNotFoundError):
        error = error.__cause__ or error  # this error only adds that the file is not in the cache either
    number = getattr(error, "errno", None)
    status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) else 500
    reason = str(error).strip().partition("\n")[0].rstrip(".")
    if isinstance(error, errors.RevisionNotFoundError):
        return HubFailed(f"{hub} has no revision {revision}.", hint=f"{page}/tree/main lists the branches")
    if isinstance(error, errors.GatedRepoError):
        return HubFailed(f"{hub} is gated, and {why}.", hint=f"ask for access at {page}{name_it}")
    if status < 500 and status != 429:
        message = f"The hub has no model {hub}, or it is private and {why} (status {status})."
        return HubFailed(message, hint=f"compare the name with {page}{name_it}")
    if number in (errno.ENOSPC, errno.EDQUOT):
        return _no_space(error.filename or "the folder of models", str(error.strerror))
    if isinstance(error, ValueError) or (number is not None and not isinstance(error, ConnectionError)):
        return HubFailed(f"{hub} cannot be downloaded: {reason}.", hint=_ELSEWHERE)
    hint = f"where there is a network: trtllm-hpc models fetch {hub}; a commit that is here needs no hub: "
    hint += "model.revision names it, trtllm-hpc models list shows it"
    return HubFailed(f"The hub cannot be reached, or the connection was lost: {reason}.", hint=hint)


_ELSEWHERE = "models_folder in the profile names another folder"


def _no_space(folder: str, reason: str) -> HubFailed:
    hint = f"trtllm-hpc models prune --older-than 30d, or {_ELSEWHERE}"
    return HubFailed(f"There is not enough space in {folder}: {reason}.", hint=hint)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
