"""Tell a story: start the cluster and the server, measure, and take both down."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.story.commands import MEASURED, CommandFailed, answer, bench, beside, run
from benchmarks.story.figures import Figures, Record
from benchmarks.story.start import start_record
from benchmarks.story.stories import STREAMS, Story

SANDBOX = f"gpu-story-{os.getpid()}"
"""Of this process's own, so that it may be taken down whatever happens."""

MODELS = ("tensorrt_llm", "ensemble", "tensorrt_llm_bls")
WARM_UPS = 1 / 6
"""Time before each measurement, as a share of it."""
MIN_REQUESTS = 4
"""Fewer make a figure invalid: in six seconds one request after another may be no more, but each has many
tokens."""
INTERRUPTED = "The benchmark was interrupted."


@dataclass(frozen=True)
class Teller:
    """Tells stories one after another and writes their figures."""

    figures: Figures
    runs: Path
    cluster: str | None
    """The cluster profile; ``None`` for a sandbox of the benchmark's own."""
    say: Callable[[str], None]

    def tell(self, story: Story) -> None:
        """Measure one story.

        Raises:
            CommandFailed: a command failed; what was measured before it is in the figures.
        """
        self.runs.mkdir(parents=True, exist_ok=True)
        # A new folder, and so a new cache of engines: the first start finds none.
        runs = Path(tempfile.mkdtemp(prefix=f"{story.name}-", dir=self.runs)) / "runs"
        runs.mkdir()
        job = runs.parent / f"{story.name}.yaml"
        job.write_text(story.job_file(self.figures.settings), encoding="utf-8")
        settings = {**asdict(self.figures.settings), "measured_at": time.strftime("%Y-%m-%d")}
        about = {"title": story.title, "settings": settings, "failure": INTERRUPTED}
        record = self.figures.begin(story.name, {**about, "starts": [], "levels": []})
        with self._cluster(story) as options:
            for which in ("first", "second"):
                self.say(f"{story.name}: {which} start")
                with self._served(job, options, runs) as start:
                    record["starts"].append(start)
                    self.figures.write()
                    if which == "second":
                        self._measure(story, runs, record)
        del record["failure"]
        self.figures.write()

    @contextmanager
    def _cluster(self, story: Story) -> Iterator[list[str]]:
        """Have a cluster, and yield the options of ``submit`` that name it."""
        if self.cluster is not None:
            yield ["--cluster", self.cluster]
            return
        real = any(Path("/dev").glob("nvidia[0-9]*"))
        shape = ["--nodes", story.nodes, "--gpus-per-node", story.gpus_per_node]
        self.say(f"{story.name}: a sandbox")
        try:
            up = answer("sandbox", "up", "--name", SANDBOX, *shape, "--gpus", "real" if real else "claimed")
            settings = (f"slurm_conf={up['slurm_conf']}", f"gpus_per_node={story.gpus_per_node}")
            yield ["--cluster", "sandbox", *(word for it in settings for word in ("--set", f"cluster.{it}"))]
        finally:
            run("sandbox", "down", "--name", SANDBOX)

    @contextmanager
    def _served(self, job: Path, options: list[str], runs: Path) -> Iterator[Record]:
        """Submit the job, yield how its server became ready, and cancel it at the end."""
        submitted_at = time.time()
        try:
            status = answer("submit", job, *options, "--runs", runs, "--wait")
            yield start_record(Path(status["folder"]), status["endpoint"], submitted_at)
        finally:
            with suppress(CommandFailed):  # no run was made
                run("cancel", "latest", "--runs", runs)

    def _measure(self, story: Story, runs: Path, record: Record) -> None:
        # Streams first: most of the bounds need them.
        for streamed in (True, False):
            for model in MODELS:
                self.say(f"{story.name}: {model}, {'streamed' if streamed else 'whole'} answers")
                summary = bench("latest", *self._load(runs, model, streamed=streamed))
                record["levels"] += [_level(model, streamed, level) for level in summary["levels"]]
                record["provenance"] = summary["provenance"]
                self.figures.write()
        self.say(f"{story.name}: {STREAMS} streams beside long prompts")
        record["long_prompts"] = self._beside_long_prompts(runs)
        self.figures.write()

    def _load(self, runs: Path, model: str, *, streamed: bool) -> list[object]:
        """Options of ``bench``: closed loops of answers of one length."""
        settings = self.figures.settings
        return [
            *("--runs", runs, "--model", model, "--streaming" if streamed else "--no-streaming"),
            *("--concurrency", ",".join(map(str, settings.concurrency))),
            *("--duration", settings.seconds, "--warmup-seconds", settings.seconds * WARM_UPS),
            *("--min-requests", MIN_REQUESTS, "--no-slo"),
            *_lengths(settings.input_tokens, settings.output_tokens),
        ]

    def _beside_long_prompts(self, runs: Path) -> Record:
        settings = self.figures.settings
        streams = self._load(runs, "tensorrt_llm", streamed=True)
        # Twice as long, since answers take longer beside long prompts; the last value of an option counts.
        streams += ["--concurrency", STREAMS, "--duration", 2 * settings.seconds]
        alone = bench("latest", *streams)["levels"][0]
        long_s = 10 * settings.seconds + 60  # until it is interrupted
        long = [
            *("--runs", runs, "--model", "tensorrt_llm", "--streaming", "--no-report", "--no-slo"),
            *("--concurrency", 1, "--duration", long_s, *_lengths(settings.long_prompt, 2)),
            *("--save-as", "long-prompts"),
        ]
        with beside("bench", "latest", *long):
            both = bench("latest", *streams)["levels"][0]
        prompts = answer("bench", "show", "latest:long-prompts", "--runs", runs, accept=MEASURED)["levels"][0]
        return {
            "streams": STREAMS,
            "alone": _level("tensorrt_llm", True, alone),
            "beside": _level("tensorrt_llm", True, both),
            "prompt": _level("tensorrt_llm", True, prompts),
        }


def _lengths(input_tokens: int, output_tokens: int) -> list[object]:
    lengths = ["--input-tokens", input_tokens, "--output-tokens", output_tokens]
    return ["--workload", "normal", *lengths, "--exact-output"]


def _level(model: str, streamed: bool, level: Record) -> Record:
    """The figures of one level of a summary that the page shows."""
    once = level["passes"][0]
    metrics: dict[str, Any] = once["metrics"]
    names = ("ttft_from_send_ms", "itl_ms", "latency_from_send_ms", "output_tokens")
    return {
        "model": model,
        "streamed": streamed,
        "concurrency": level["level"]["concurrency"],
        "output_tokens_per_s": metrics.get("output_tokens_per_s"),
        "requests": once["measured"],
        **{name: metrics[name] for name in names if name in metrics},
        "findings": once["verdict"]["findings"],
    }
