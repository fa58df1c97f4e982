"""``runtime engine``: build the steps of the recipe whose outputs are not in the cache."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from trtllm_hpc.errors import FAIL, WARN, BuildFailed, ExitCode
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.checks import installed_versions, planned_version
from trtllm_hpc.runtime.engine_cache.build_recipe import BuildRecipe, BuildStep
from trtllm_hpc.runtime.engine_cache.cache import (
    MANIFEST,
    Cache,
    CacheEntry,
    EntryHeld,
    EntryLock,
    Manifest,
    files_in,
    link,
)
from trtllm_hpc.runtime.engine_cache.keys import StepKey, step_keys
from trtllm_hpc.runtime.engine_cache.shared_files import (
    make_shared,
    remove,
    sha256_of,
    sync_folder,
    write_shared,
)
from trtllm_hpc.runtime.heartbeat import Heartbeat
from trtllm_hpc.runtime.node import query_gpus
from trtllm_hpc.runtime.process import adopt_orphans, kill_descendants, on_signals, run_group
from trtllm_hpc.runtime.records import add_event

PACKAGES = ("tensorrt_llm", "tensorrt", "torch", "transformers", "trtllm_hpc")
"""Packages whose versions the manifest records."""

_POLL_S, _REPORT_S = 1.0, 60.0
"""Seconds between two looks at another job's build, and between two lines about the same wait."""
_ATTEMPTS = 10
"""Attempts to provide a step: its entry may be pruned before it is used, or another build may take over."""


def build_engine(paths: RunPaths) -> int:
    """Make sure that the run's engine is in the cache, and link it; return an exit code."""
    signals: list[str] = []
    on_signals(signals.append)
    adopt_orphans()
    Heartbeat(paths.rank_heartbeat("build", 0)).begin()
    try:
        recipe = BuildRecipe.read(paths.build_recipe)
        versions = installed_versions(PACKAGES)
        if recipe.tensorrt_llm is not None and "tensorrt_llm" in versions:
            # A release candidate or a patch of the same number only causes a warning: images have them under
            # a release's tag, and a job file can name releases only.
            diagnostic = planned_version(recipe.tensorrt_llm, versions["tensorrt_llm"])
            if diagnostic.state == FAIL:
                raise BuildFailed(f"{diagnostic.message}.", hint=diagnostic.hint)
            if diagnostic.state == WARN:
                print(f"warning: {diagnostic.message}", flush=True)
        capability = compute_capability(recipe)
        script = sha256_of(paths.script("build"))
        # The hash of an edited script becomes part of the keys: the planned keys belong to the planned
        # script.
        edited = None if script == recipe.script_sha256 else script
        keys = step_keys(recipe, compute_capability=capability, edited_script=edited)
        _Builder(paths, recipe, keys, versions, signals).run()
    except KeyboardInterrupt:  # raised by _Builder after any signal
        print(f"the build stops: got {signals[0]}", flush=True)
        return 128 + signal.Signals[signals[0]]
    except OSError as error:
        file = f"{os.fsdecode(error.filename)}: " if error.filename else ""
        print(f"error: the engine cache cannot be used: {file}{error.strerror or error}.", file=sys.stderr)
        return ExitCode.BUILD
    finally:
        kill_descendants()
    return ExitCode.OK


def compute_capability(recipe: BuildRecipe) -> str | None:
    """Return the GPU's compute capability for the keys; ``None`` if no step depends on it.

    Raises BuildFailed if it cannot be read, or differs from the profile's.
    """
    if not any(step.on_gpu for step in recipe.steps):
        return None
    lines = query_gpus("compute_cap")
    capabilities = sorted({line for line in lines if line.replace(".", "", 1).isdigit()})
    planned = recipe.compute_capability
    if len(capabilities) > 1:
        raise BuildFailed(
            f"the GPUs that this job sees have different compute capabilities ({', '.join(capabilities)}).",
            hint="set constraint in the cluster profile so that all nodes have the same GPUs",
        )
    if not capabilities and planned is None:
        raise BuildFailed(
            "the compute capability of the GPU cannot be read (nvidia-smi shows no GPU to this job).",
            hint="set build.gpus to 1, or compute_capability in the cluster profile",
        )
    if capabilities and planned is not None and capabilities[0] != planned:
        raise BuildFailed(
            f"this node's GPU has compute capability {capabilities[0]}, but the cluster profile says "
            f"{planned}.",
            hint="correct compute_capability in the profile, or set constraint to nodes that have it",
        )
    return capabilities[0] if capabilities else planned


class _Builder:
    """Builds the missing steps of a recipe, in their order."""

    def __init__(
        self,
        paths: RunPaths,
        recipe: BuildRecipe,
        keys: Sequence[StepKey],
        versions: Mapping[str, str],
        signals: list[str],
    ) -> None:
        self._paths, self._recipe, self._versions, self._signals = paths, recipe, versions, signals
        self._cache = Cache(Path(recipe.engines_folder))
        self._job_id = os.environ.get("TRTLLM_HPC_JOB_ID", "")
        self._keys = {key.step: key for key in keys}
        """Key of each step, by the step's name, in the order of the steps."""
        self._entries = {key.step: self._cache.entry(key) for key in keys}

    def run(self) -> None:
        """Build the missing outputs, and link those that the run needs."""
        steps, results = self._recipe.steps, self._recipe.results
        self._cache.folder.mkdir(parents=True, exist_ok=True)
        needed = set(results)
        for step in reversed(steps):
            if step.name in needed and not self._entries[step.name].is_complete():
                needed.update(step.reads)
        for step in steps:
            if step.name in needed and not any(self._provide(step) for _ in range(_ATTEMPTS)):
                raise BuildFailed(
                    f"step {step.name} was built {_ATTEMPTS} times, and each time the cache in "
                    f"{self._cache.folder} lost it.",
                    hint="trtllm-hpc engines verify",
                )
        for result in results:
            is_engine, output = result == steps[-1].name, self._entries[result].output
            name = self._paths.engine if is_engine else self._paths.side_output(result)
            link(name, output)
            print(f"{name.name}: {output}", flush=True)

    def _provide(self, step: BuildStep) -> bool:
        """Find a step's output, build it, or wait for another build; return whether it is complete now."""
        entry, begun, reported = self._entries[step.name], time.monotonic(), float("-inf")
        if entry.is_complete():
            self._report(step, "found", f"found in the cache ({entry.name})")
            return entry.register(self._paths.folder)
        names = list(self._keys)
        chain = {name: self._keys[name].document for name in names[: names.index(step.name) + 1]}
        with suppress(FileNotFoundError):  # another process is removing the entry
            entry.make(self._keys[step.name], self._recipe.about, chain)
        owner = f"job {self._job_id} on {socket.gethostname()}" if self._job_id else socket.gethostname()
        while entry.folder.is_dir() and not entry.is_complete():
            try:
                with entry.locked(owner) as lock:
                    is_built = self._build(step, entry, lock)
                return is_built and entry.register(self._paths.folder)
            except EntryHeld:
                builder = entry.holder() or "another process"
            waited_s = time.monotonic() - begun
            span = f"{waited_s:.0f} s" if waited_s < 60 else f"{waited_s / 60:.0f} min"
            waits = f"waits for the same output, being built by {builder}, step {step.name}, for {span}"
            if waited_s - reported >= _REPORT_S:
                reported = waited_s
                self._report(step, "waiting", waits)
            if waited_s > self._recipe.wait_seconds:
                raise BuildFailed(
                    f"{waits}, which is as long as this job may wait.",
                    hint="raise build.time_limit_minutes, or look at that job with squeue",
                )
            until = time.monotonic() + _POLL_S
            while time.monotonic() < until:
                if self._signals:
                    raise KeyboardInterrupt
                time.sleep(0.1)
        return False

    def _build(self, step: BuildStep, entry: CacheEntry, lock: EntryLock) -> bool:
        """Run a step's commands and publish the output; return ``False`` if another build has published it.

        Each build works in a folder of its own and publishes by one rename. So if two build at once, on a
        file system without locks or after a lost lock, the first one publishes and the second does no harm.
        """
        if lock.excludes:
            entry.clear()
        faults = entry.faults()
        if faults == []:
            return False
        work = entry.folder / "building" / secrets.token_hex(8)
        make_shared(work.parent)
        make_shared(work)
        if faults:
            entry.output.rename(work / "broken")
            entry.damage.unlink(missing_ok=True)
            fault = f"the cached output is broken ({faults[0]}), it is built again"
            print(f"step {step.name}: {fault}", flush=True)
        try:
            self._report(step, "building", f"builds {step.name}")
            started_at, started = time.time(), time.monotonic()
            outputs = {name: str(entry.output) for name, entry in self._entries.items()}
            inputs = {name: outputs[name] for name in step.reads if name in outputs}
            code = run_group(
                ["bash", str(self._paths.script("build")), step.name],
                {**os.environ, "output": str(work / "output"), **inputs},
                stop=lambda: bool(self._signals),
            )
            if self._signals:
                raise KeyboardInterrupt
            if code:
                raise BuildFailed(
                    f"step {step.name} of the build failed (exit code {code}); its own output is above.",
                    hint=f"correct what it reports, or try it by hand: {self._paths.script('build')}",
                )
            took_s = time.monotonic() - started
            self._write_manifest(step, work / "output", started_at, took_s)
            if lock.is_lost():  # the folder may have been removed and remade with only a part of the files
                return False
            (work / "output").rename(entry.output)
            sync_folder(entry.folder)
        except (BuildFailed, OSError):
            # A failure means nothing if another build has removed this build's folder, or is done.
            if not lock.is_lost() and not entry.is_complete():
                raise
            return False
        finally:
            remove(work)
            with suppress(OSError):
                work.parent.rmdir()
        self._report(step, "built", f"built {entry.name} in {took_s:.0f} s")
        return True

    def _write_manifest(self, step: BuildStep, output: Path, started_at: float, took_s: float) -> None:
        """Write an output's manifest, which completes the output, once all files are on the disk."""
        files = list(files_in(output)) if output.is_dir() else []
        sizes = [file.stat().st_size for file in files]
        if not sum(sizes):
            raise BuildFailed(
                f"step {step.name} of the build ended well but left nothing in its output folder.",
                hint=f"look at its output above, and at {self._paths.script('build')}",
            )
        # Builders make files that only their user can read; whoever may read the cache may read the output.
        readable = output.parent.stat().st_mode & 0o555
        for parent, below, inner in os.walk(output):
            for path in (Path(parent), *(Path(parent, name) for name in (*below, *inner))):
                bits = readable if path.is_dir() else readable & 0o444
                with suppress(PermissionError):  # the path may be a link to another user's file
                    path.chmod(path.stat().st_mode | bits)
        with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
            digests = pool.map(lambda file: sha256_of(file, sync=True), files)
            names = (str(file.relative_to(output)) for file in files)
            entries = {name: [size, digest] for name, size, digest in zip(names, sizes, digests, strict=True)}
        built_at, host = started_at + took_s, socket.gethostname()
        manifest = Manifest(entries, built_at, round(took_s, 3), host, self._job_id, dict(self._versions))
        write_shared(output / MANIFEST, asdict(manifest))
        for folder, _, _ in os.walk(output):
            sync_folder(Path(folder))

    def _report(self, step: BuildStep, state: str, sentence: str) -> None:
        """Print what happens to a step, and record it as the build's progress."""
        print(f"step {step.name}: {sentence}", flush=True)
        message = sentence if step.name in sentence else f"{step.name}: {sentence}"
        number = self._recipe.steps.index(step) + 1
        progress = {"step": number, "of": len(self._recipe.steps), "message": message, "state": state}
        add_event(self._paths, "build", "progress", **progress)
