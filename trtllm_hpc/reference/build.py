"""The build stage: make the engine folder that the reference backend loads.

Usage: ``python -m trtllm_hpc.reference.build --output DIR --tensor-parallel N …``
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trtllm_hpc import __version__
from trtllm_hpc.config.synthetic_models import SHAPE, STAND_IN, TINY
from trtllm_hpc.errors import BuildFailed, ExitCode, TrtllmHpcError
from trtllm_hpc.paths import write_json
from trtllm_hpc.reference import synthetic
from trtllm_hpc.reference.engine_folder import BUILD_LIMITS, CONFIG, MODEL, TOKENIZER
from trtllm_hpc.reference.world import first_sentence

_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "max_position_embeddings"),
)
"""Sizes of a model that are copied into the engine's ``config.json``; a model may lack some of them."""
_NO_TENSORS = (2).to_bytes(8, "little") + b"{}"
"""A safetensors file without tensors: the length of its header, and the header."""


def build(settings: argparse.Namespace) -> None:
    """Build the engine in ``settings.output``, a new folder that is removed if the build fails.

    Raises BuildFailed if the model cannot be read or cannot be split over the ranks; OSError if the folder
    exists or cannot be written.
    """
    engine = settings.output.absolute()
    engine.mkdir(parents=True)
    try:
        if settings.synthetic == STAND_IN:
            (engine / MODEL).mkdir()
            (engine / MODEL / "model.safetensors").write_bytes(_NO_TENSORS)
            model = {"architecture": STAND_IN, **{name: SHAPE[name] for name in _SIZES if name in SHAPE}}
        else:
            model = _write_model(settings, engine)
        if settings.model is None:
            synthetic.make_tokenizer(engine / TOKENIZER)
        else:
            from transformers import AutoTokenizer

            _readable(AutoTokenizer, settings.model).save_pretrained(engine / TOKENIZER)
            if not (engine / TOKENIZER / "tokenizer.json").is_file():
                raise BuildFailed(
                    f"The tokenizer in {settings.model} cannot be written as tokenizer.json: "
                    "use a model with a fast tokenizer."
                )
        write_json(engine / CONFIG, _engine_config(settings, model))
    except BaseException:  # Ctrl-C must not leave a partial engine either
        shutil.rmtree(engine)
        raise
    print(f"engine ready in {engine}", flush=True)


def _write_model(settings: argparse.Namespace, engine: Path) -> dict[str, Any]:
    """Write the weights; return the architecture and the sizes of the model."""
    print("importing torch and transformers", flush=True)
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    if settings.model is None:
        model = synthetic.make_model(
            seed=settings.seed, dtype=settings.dtype, max_seq_len=settings.max_seq_len
        )
    else:
        model = _readable(AutoModelForCausalLM, settings.model, dtype=settings.dtype)
    config = model.config.get_text_config()
    _check(model, config, settings)
    print("writing weights", flush=True)
    # In one file, from which each rank reads its part.
    model.save_pretrained(engine / MODEL, max_shard_size="1000TB")
    sizes = {name: getattr(config, name) for name in _SIZES if hasattr(config, name)}
    return {"architecture": type(model).__name__, **sizes}


def _check(model: Any, config: Any, settings: argparse.Namespace) -> None:
    """Refuse a model that cannot be split over the ranks, or that continuous batching would change."""
    for name in ("num_attention_heads", "num_key_value_heads"):
        value = getattr(config, name, None)
        if value is not None and value % settings.tensor_parallel:
            raise BuildFailed(
                f"The model's {name} is {value}, which cannot be split over "
                f"--tensor-parallel {settings.tensor_parallel} ranks."
            )
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and settings.max_seq_len > longest:
        raise BuildFailed(f"--max-seq-len {settings.max_seq_len} exceeds the model's own limit of {longest}.")
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    limits_scores = getattr(config, "attn_logit_softcapping", None) is not None
    sinks = any(name.endswith(".sinks") for name, _ in model.named_parameters())
    if model.config.is_encoder_decoder or kinds or model._is_stateful or limits_scores or sinks:
        raise BuildFailed(
            f"The reference backend cannot serve models of type {config.model_type}: it has plain attention "
            "over all tokens, and no encoder, state, sinks or softcapping. Use engine.backend: tensorrtllm."
        )


def _readable(kind: Any, source: Path, **arguments: Any) -> Any:
    """Read a model or tokenizer from a local folder. Raises BuildFailed for any exception of transformers."""
    try:
        return kind.from_pretrained(source, local_files_only=True, **arguments)
    except Exception as error:  # transformers and its readers raise anything
        raise BuildFailed(
            f"transformers cannot read the model in {source}: {first_sentence(error)}"
        ) from error


def _engine_config(settings: argparse.Namespace, model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of ``config.json`` in the format that ``trtllm-build`` writes."""
    ranks = settings.tensor_parallel
    return {
        "version": __version__,
        "pretrained_config": {
            "dtype": settings.dtype,
            **model,
            "mapping": {
                **dict.fromkeys(("world_size", "tp_size", "gpus_per_node"), ranks),
                "pp_size": 1,
                "cp_size": 1,
            },
        },
        "build_config": {
            **{name: getattr(settings, name) for name in BUILD_LIMITS},
            "max_beam_width": 1,
            "plugin_config": {"tokens_per_block": settings.tokens_per_block, "lora_plugin": None},
        },
        "trtllm_hpc": {"backend": "reference", "seed": settings.seed},
    }


_NUMBERS = {
    "--tensor-parallel": (None, "ranks"),
    "--max-batch-size": (None, "requests that run at once"),
    "--max-input-len": (None, "longest prompt in tokens"),
    "--max-seq-len": (None, "longest sequence in tokens: prompt and new tokens together"),
    "--max-num-tokens": (0, "most tokens of one step (default: 8192, or those of a full batch)"),
    "--tokens-per-block": (64, "tokens in a block of the KV cache (default 64)"),
    "--seed": (0, "seed of a synthetic model's weights (default 0)"),
}
"""Options with a number: the default (``None`` for a required option), and the help."""


def _settings(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m trtllm_hpc.reference.build",
        description="Build an engine for the reference backend. Limits are those of trtllm-build.",
    )
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="the engine folder to make")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", type=Path, metavar="PATH", help="local folder in transformers' format")
    source.add_argument("--synthetic", choices=(TINY, STAND_IN), help="a small random model")
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="float32")
    for option, (default, text) in _NUMBERS.items():
        parser.add_argument(
            option, type=int, default=default, required=default is None, metavar="N", help=text
        )
    settings = parser.parse_args(argv)
    # trtllm-build's default of 8192 tokens, or those of a full batch if these are fewer.
    settings.max_num_tokens = settings.max_num_tokens or min(
        8192, settings.max_batch_size * settings.max_seq_len
    )
    return settings


def main(argv: Sequence[str] | None = None) -> int:
    """Run the build stage and return its exit code."""
    try:
        build(_settings(argv))
    except TrtllmHpcError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"error: the engine cannot be written: {error}", file=sys.stderr)
        return ExitCode.BUILD
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
