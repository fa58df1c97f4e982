"""The reference backend on GPUs, from ``trtllm-hpc submit`` to tokens a second.

``python -m benchmarks.gpu_story [--stories tp1,tp2,tp2-two-nodes,two-instances] [--out FOLDER] [--add]``

Each story is a job file under real Slurm: one GPU, two GPUs of one node, two nodes of one GPU
each, two instances on a GPU each behind one door. For each the benchmark starts a sandbox of that
shape (``sandbox up --gpus real`` where the machine has GPUs), or uses the profile that
``--cluster`` names, and then

- submits the job, which builds an engine, and cancels it when the server is ready;
- submits it once more: the engine is there, and the second start is measured;
- measures output tokens a second, time to first token and inter-token time in closed loops, for
  ``tensorrt_llm``, ``ensemble`` and ``tensorrt_llm_bls``, with whole and with streamed answers;
- measures eight streams alone, and beside long prompts that arrive one after another.

It types the commands that a user would: ``sandbox``, ``submit``, ``bench``, ``logs``, ``cancel``.
Figures are written after each measurement, to ``gpu.json`` in the folder ``--out``; page and plots
(``gpu.md``, ``img/gpu-*.svg``) when all is done or interrupted. ``--add`` keeps the stories that
are already in ``gpu.json``, so that each may be a run of its own. ``--page-only`` measures
nothing and writes page and plots again.

The exit code is 1 when a bound is broken, 2 when a story failed. Bounds are judged on GPUs only.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.arguments import number, numbers
from benchmarks.story.bounds import verdicts
from benchmarks.story.commands import CommandFailed
from benchmarks.story.figures import Figures, NotComparable, Settings
from benchmarks.story.page import page
from benchmarks.story.plots import plot
from benchmarks.story.stories import STORIES, Story
from benchmarks.story.tell import Teller
from trtllm_hpc.config.synthetic_models import SHAPES

SHORT_NAMES = {"tiny": "tiny-llama"}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    arguments = _parser().parse_args(argv)
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, interrupt)
    try:
        figures = _figures(arguments)
    except NotComparable as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        if not arguments.page_only:
            _tell(arguments, figures)
    except KeyboardInterrupt:
        print("interrupted: page and plots show what was measured", file=sys.stderr)
        return 130
    finally:
        _write(figures, arguments.out)
    return _judge(figures)


def _figures(arguments: argparse.Namespace) -> Figures:
    """Figures to start from: those in the folder, or none."""
    file = arguments.out / "gpu.json"
    settings = Settings(
        model=arguments.model,
        dtype=arguments.dtype,
        input_tokens=arguments.input_tokens,
        output_tokens=arguments.output_tokens,
        long_prompt=arguments.long_prompt,
        concurrency=arguments.concurrency,
        seconds=arguments.seconds,
    )
    if arguments.page_only:
        return Figures.read(file)
    return Figures.read(file, settings) if arguments.add and file.exists() else Figures(file, settings)


def _tell(arguments: argparse.Namespace, figures: Figures) -> None:
    arguments.out.mkdir(parents=True, exist_ok=True)
    runs: Path = arguments.runs or Path(tempfile.mkdtemp(prefix="gpu-story-", dir="/tmp"))
    say(f"run folders are below {runs}")
    teller = Teller(figures, runs, arguments.cluster, say)
    for story in arguments.stories:
        try:
            teller.tell(story)
        except CommandFailed as error:
            figures.fail(story.name, str(error))
            say(f"{story.name} FAILED: {error}")
    if arguments.runs is None and not any("failure" in figures.stories[it.name] for it in arguments.stories):
        shutil.rmtree(runs)


def _write(figures: Figures, folder: Path) -> None:
    """Write page and plots, if anything was measured."""
    if not figures.stories:
        return
    images = plot(figures, folder / "img")
    (folder / "gpu.md").write_text(page(figures, images), encoding="utf-8")
    say(f"written: {folder / 'gpu.md'}")


def _judge(figures: Figures) -> int:
    judged = verdicts(figures)
    for verdict in judged:
        print(verdict)
    if any(story.get("failure") for story in figures.stories.values()):
        return 2
    return 0 if all(verdict.kept for verdict in judged) else 1


def say(sentence: str) -> None:
    """Print progress with the time of day."""
    print(f"{time.strftime('%H:%M:%S')} {sentence}", file=sys.stderr, flush=True)


def interrupt(number: int, frame: object) -> None:
    """Interrupt once: a second signal must not keep the first from cancelling jobs."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ",".join(STORIES)
    parser.add_argument(
        "--stories",
        type=_stories,
        default=tuple(story for story in STORIES.values() if story.can_be_told),
        metavar="NAME,…",
        help=f"of {names}; the last needs HAProxy",
    )
    parser.add_argument("--model", type=_model, default="llama-1b", help=f"tiny, {', '.join(SHAPES)}")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--concurrency", type=numbers, default=(1, 8, 32, 128), metavar="N,…")
    parser.add_argument("--seconds", type=float, default=6.0, metavar="S", help="of each measurement")
    parser.add_argument("--input-tokens", type=number, default=128, metavar="N")
    parser.add_argument("--output-tokens", type=number, default=128, metavar="N")
    parser.add_argument(
        "--long-prompt", type=number, default=4096, metavar="N", help="tokens of a long prompt"
    )
    parser.add_argument(
        "--cluster", metavar="PROFILE", help="where to submit; left out: a sandbox is started for each story"
    )
    parser.add_argument(
        "--runs",
        type=Path,
        metavar="DIR",
        help="run folders, where every node sees them; left out: below /tmp, and removed if nothing fails",
    )
    out = Path("docs/explanation")
    parser.add_argument("--out", type=Path, default=out, metavar="DIR", help="page, plots, figures")
    parser.add_argument("--add", action="store_true", help="keep the stories in the folder --out")
    parser.add_argument("--page-only", action="store_true", help="only write page and plots again")
    return parser


def _model(text: str) -> str:
    name = SHORT_NAMES.get(text, text)
    if name not in SHAPES:
        raise argparse.ArgumentTypeError(f"{text} is none of tiny, {', '.join(SHAPES)}")
    return name


def _stories(text: str) -> tuple[Story, ...]:
    names = text.split(",")
    unknown = sorted(set(names) - STORIES.keys())
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose from {', '.join(STORIES)}")
    return tuple(STORIES[name] for name in names)


if __name__ == "__main__":
    sys.exit(main())
