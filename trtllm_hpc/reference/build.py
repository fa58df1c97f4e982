"""The build stage: make the engine folder that the reference backend loads.

Usage: ``python -m trtllm_hpc.reference.build --output DIR --tensor-parallel N …``
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NoReturn

from trtllm_hpc import __version__
from trtllm_hpc.config.synthetic_models import SHAPES, STAND_IN, shape_of
from trtllm_hpc.errors import BuildFailed, ExitCode, TrtllmHpcError
from trtllm_hpc.paths import RunPaths, read_json, write_json
from trtllm_hpc.reference import synthetic
from trtllm_hpc.reference.engine_config import BUILD_LIMITS, EngineFolder
from trtllm_hpc.runtime.records import add_event

DTYPES = ("float32", "float16", "bfloat16")
STEPS = 5
_SHAPE = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
)
"""What ``config.json`` tells of a model, where it has it."""
_NO_TENSORS = (2).to_bytes(8, "little") + b"{}"
"""A file of safetensors without any: the length of its header, and the header."""

Progress = Callable[[int, str], None]


@dataclass(frozen=True)
class BuildSettings:
    """Everything that an engine depends on. Lengths are in tokens."""

    source: str
    """Folder of a model in transformers' format, or ``synthetic:<name>``."""
    source_fingerprint: str
    tensor_parallel: int
    gpus_per_node: int
    seed: int
    dtype: str
    max_batch_size: int
    max_input_len: int
    max_seq_len: int
    max_num_tokens: int
    max_beam_width: int
    tokens_per_block: int
    gather_context_logits: bool
    gather_generation_logits: bool
    max_lora_rank: int


def build(settings: BuildSettings, output: Path, progress: Progress) -> None:
    """Build the engine at ``output`` unless one with the same settings is there.

    The folder is made beside ``output`` and renamed when it is complete. Raises BuildFailed if the model
    cannot be read or cannot be split over the ranks.
    """
    if _is_built(settings, output):
        progress(STEPS, f"nothing to do: {output} is already built with these settings")
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as scratch:
        aside = Path(scratch) / "engine"
        aside.mkdir()
        _fill(settings, EngineFolder(aside), progress)
        _put_in_place(aside, output, Path(scratch))
    progress(STEPS, f"engine ready in {output}")


def _is_built(settings: BuildSettings, output: Path) -> bool:
    try:
        record = read_json(EngineFolder(output).config)
    except (ValueError, OSError):
        return False
    return isinstance(record, dict) and record.get("trtllm_hpc") == _stamp(settings)


def _stamp(settings: BuildSettings) -> dict[str, Any]:
    return {"backend": "reference", "settings": asdict(settings)}


def _put_in_place(aside: Path, output: Path, scratch: Path) -> None:
    """Rename the complete engine; an older one is moved into ``scratch`` first."""
    if output.exists():
        output.rename(scratch / "replaced")
    try:
        aside.rename(output)
    except OSError as error:
        raise BuildFailed(
            f"{output} could not be put in place: {error.strerror}.", hint="is another build writing there?"
        ) from error


def _fill(settings: BuildSettings, engine: EngineFolder, progress: Progress) -> None:
    if settings.source == f"synthetic:{STAND_IN}":
        _fill_stand_in(settings, engine, progress)
        return
    progress(1, "importing torch and transformers")
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    from trtllm_hpc.reference import servable, weights  # they import torch, too

    transformers_logging.disable_progress_bar()
    kind, _, name = settings.source.partition(":")
    is_synthetic = kind == "synthetic"
    progress(2, f"{'initialising' if is_synthetic else 'loading'} weights")
    if is_synthetic:
        model = synthetic.make_model(
            name, seed=settings.seed, dtype=settings.dtype, max_seq_len=settings.max_seq_len
        )
    else:
        model = _readable(AutoModelForCausalLM, settings.source, dtype=settings.dtype)
    servable.check(model, settings.tensor_parallel, settings.max_seq_len)
    progress(3, "writing weights")
    weights.write(model, engine, settings.tensor_parallel)
    progress(4, "writing the tokenizer")
    if is_synthetic:
        synthetic.make_tokenizer(engine.tokenizer, model.config.vocab_size)
    else:
        _readable(AutoTokenizer, settings.source).save_pretrained(engine.tokenizer)
        if not (engine.tokenizer / "tokenizer.json").is_file():
            raise BuildFailed(
                f"The tokenizer in {settings.source} cannot be written as tokenizer.json, "
                "which the server reads."
            )
    text = model.config.get_text_config()
    shape = {name: getattr(text, name) for name in _SHAPE if hasattr(text, name)}
    write_json(engine.config, _engine_config(settings, type(model).__name__, shape))


def _fill_stand_in(settings: BuildSettings, engine: EngineFolder, progress: Progress) -> None:
    """Write the files of an engine without a model: a tokenizer, and no tensors."""
    wanted = [
        name
        for name in ("gather_context_logits", "gather_generation_logits", "max_lora_rank")
        if getattr(settings, name)
    ]
    if settings.max_beam_width > 1:
        wanted.append("max_beam_width")
    if wanted:
        raise BuildFailed(
            f"The model {STAND_IN} computes nothing, and so has no {', '.join(wanted)}.",
            hint="leave them out, or set model.synthetic to tiny-llama",
        )
    shape = {name: value for name, value in shape_of(STAND_IN).items() if name in _SHAPE}
    for rank in range(settings.tensor_parallel):
        engine.weights(rank).write_bytes(_NO_TENSORS)
    progress(4, "writing the tokenizer")
    synthetic.make_tokenizer(engine.tokenizer, shape["vocab_size"])
    write_json(engine.config, _engine_config(settings, STAND_IN, shape))


def _readable(kind: Any, source: str, **arguments: Any) -> Any:
    """Read a model or tokenizer from a local folder; any exception of transformers becomes one sentence."""
    try:
        return kind.from_pretrained(source, local_files_only=True, **arguments)
    except Exception as error:  # transformers raises many kinds of errors for a bad folder
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BuildFailed(f"transformers cannot read the model in {source}: {first}") from error


def _engine_config(settings: BuildSettings, architecture: str, shape: Mapping[str, Any]) -> dict[str, Any]:
    """``config.json`` in the format that ``trtllm-build`` writes."""
    return {
        "version": __version__,
        "pretrained_config": _pretrained_config(settings, architecture, shape),
        # lora_plugin is set for engines that take adapters.
        "build_config": {
            **{name: getattr(settings, name) for name in BUILD_LIMITS},
            "lora_config": {"max_lora_rank": settings.max_lora_rank},
            "plugin_config": {
                "tokens_per_block": settings.tokens_per_block,
                "lora_plugin": settings.dtype if settings.max_lora_rank else None,
            },
        },
        "trtllm_hpc": _stamp(settings),
    }


def _pretrained_config(
    settings: BuildSettings, architecture: str, shape: Mapping[str, Any]
) -> dict[str, Any]:
    ranks = settings.tensor_parallel
    return {
        "architecture": architecture,
        "dtype": settings.dtype,
        **shape,
        "mapping": {
            "world_size": ranks,
            "tp_size": ranks,
            "pp_size": 1,
            "cp_size": 1,
            "gpus_per_node": settings.gpus_per_node,
        },
    }


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BuildFailed(f"{message[:1].upper()}{message[1:]}.", hint=f"{self.prog} --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m trtllm_hpc.reference.build", description="Build an engine for the reference backend."
    )
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="the engine folder to make")
    parser.add_argument("--tensor-parallel", type=_positive, required=True, metavar="N", help="ranks")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", type=Path, metavar="PATH", help="local folder in transformers' format")
    source.add_argument("--synthetic", choices=(*SHAPES, STAND_IN), help="a small random model")
    parser.add_argument("--seed", type=int, default=0, help="of a synthetic model's weights (default 0)")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--max-batch-size", type=_positive, required=True, metavar="B")
    parser.add_argument(
        "--max-input-len", type=_positive, required=True, metavar="I", help="prompt, in tokens"
    )
    parser.add_argument(
        "--max-seq-len", type=_positive, required=True, metavar="S", help="prompt and new tokens together"
    )
    _add_limits(parser)
    parser.add_argument(
        "--gpus-per-node", type=_positive, metavar="G", help="written into config.json (default: all ranks)"
    )
    parser.add_argument(
        "--run", type=Path, metavar="RUN_FOLDER", help="write the progress into this run's events"
    )
    return parser


def _add_limits(parser: argparse.ArgumentParser) -> None:
    """Limits that have a default; names and meanings are ``trtllm-build``'s."""
    parser.add_argument(
        "--max-num-tokens",
        type=_positive,
        metavar="T",
        help="tokens of all requests in one step (default: 8192, or all that a full batch can have)",
    )
    parser.add_argument("--max-beam-width", type=_positive, default=1, metavar="W")
    parser.add_argument("--tokens-per-block", type=_positive, default=64, metavar="N")
    parser.add_argument(
        "--gather-context-logits", action="store_true", help="allow requests for a prompt's logits"
    )
    parser.add_argument(
        "--gather-generation-logits", action="store_true", help="allow requests for an answer's logits"
    )
    parser.add_argument(
        "--max-lora-rank", type=_not_negative, default=0, metavar="R", help="0 (the default): no LoRA"
    )


def _at_least(least: int, name: str) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise ValueError
        return value

    number.__name__ = name  # argparse names the type by this in its message
    return number


_positive = _at_least(1, "positive number")
_not_negative = _at_least(0, "number from 0")


def _settings(arguments: argparse.Namespace) -> BuildSettings:
    if arguments.max_input_len >= arguments.max_seq_len:
        raise BuildFailed(
            f"--max-input-len {arguments.max_input_len} leaves no room for new tokens "
            f"within --max-seq-len {arguments.max_seq_len}."
        )
    model: Path | None = arguments.model
    # trtllm-build's default of 8192 tokens, or those of a full batch if these are fewer.
    usual_num_tokens = min(8192, arguments.max_batch_size * arguments.max_seq_len)
    derived = {
        "source": f"synthetic:{arguments.synthetic}" if model is None else str(model.absolute()),
        "source_fingerprint": "" if model is None else _fingerprint(model),
        "gpus_per_node": arguments.gpus_per_node or arguments.tensor_parallel,
        "max_num_tokens": arguments.max_num_tokens or usual_num_tokens,
    }
    given = {**vars(arguments), **derived}
    return BuildSettings(**{field.name: given[field.name] for field in fields(BuildSettings)})


def _fingerprint(model: Path) -> str:
    """Names, sizes and times of a model's files, which show a change without reading the weights."""
    if not (model / "config.json").is_file():
        raise BuildFailed(f"There is no model in {model}: config.json is missing.", hint="check --model")
    files = sorted(path for path in model.iterdir() if path.is_file())
    return " ".join(f"{path.name}:{path.stat().st_size}:{path.stat().st_mtime_ns}" for path in files)


def _progress(run: Path | None) -> Progress:
    def progress(step: int, message: str) -> None:
        print(f"[{step}/{STEPS}] {message}", flush=True)
        if run is not None:
            add_event(RunPaths(run), "build", "progress", step=step, of=STEPS, message=message)

    return progress


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    try:
        arguments = _parser().parse_args(argv)
        build(_settings(arguments), arguments.output.absolute(), _progress(arguments.run))
    except TrtllmHpcError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"error: the engine cannot be written: {error}", file=sys.stderr)
        return ExitCode.BUILD
    return ExitCode.OK


if __name__ == "__main__":
    # A cancelled job gets SIGTERM: exit in a way that removes the half-built engine.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
