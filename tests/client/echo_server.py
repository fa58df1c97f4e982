"""A real tritonserver with models that answer at once: ``ensemble`` and others with its inputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.triton import running_triton
from trtllm_hpc.runtime.records import Endpoint

_TEXT_INPUTS = {"text_input": "STRING", "max_tokens": "INT32", "bad_words": "STRING", "stop_words": "STRING"}

# Each model: its inputs and its outputs, all of one flexible dimension and batched.
MODELS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "ensemble": (_TEXT_INPUTS, {"text_output": "STRING", "sequence_length": "INT32"}),
    "uncounted": (_TEXT_INPUTS, {"text_output": "STRING"}),
    "decoupled": (_TEXT_INPUTS, {"text_output": "STRING", "sequence_length": "INT32"}),
    # Inputs that the reference backend's release lacks.
    "mirror": (
        {
            "text_input": "STRING",
            "sampling_param_max_tokens": "INT32",
            "sampling_param_temperature": "FP32",
            "sampling_param_top_k": "INT32",
            "sampling_param_top_p": "FP32",
            "sampling_param_min_p": "FP32",
            "sampling_param_seed": "UINT64",
            "sampling_param_presence_penalty": "FP32",
            "sampling_param_frequency_penalty": "FP32",
            "sampling_param_stop": "STRING",
            "sampling_param_exclude_input_from_output": "BOOL",
            "draft_input_ids": "INT32",
        },
        {"text_output": "STRING"},
    ),
    "llm_api": (
        {"text_input": "STRING", "sampling_param_max_tokens": "INT32"},
        {"text_output": "STRING", "sequence_length": "INT32"},
    ),
}
# Those that only the benchmark needs.
CORE_MODELS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "joined": (_TEXT_INPUTS, {"text_output": "STRING"}),
    "preprocessing": (
        {
            "QUERY": "STRING",
            "REQUEST_OUTPUT_LEN": "INT32",
            "BAD_WORDS_DICT": "STRING",
            "STOP_WORDS_DICT": "STRING",
        },
        {"INPUT_ID": "INT32", "REQUEST_INPUT_LEN": "INT32"},
    ),
    "tensorrt_llm": (
        {"input_ids": "INT32", "input_lengths": "INT32", "request_output_len": "INT32"},
        {"output_ids": "INT32", "sequence_length": "INT32"},
    ),
    "core_decoupled": (
        {"input_ids": "INT32", "input_lengths": "INT32", "request_output_len": "INT32", "streaming": "BOOL"},
        {"output_ids": "INT32", "sequence_length": "INT32"},
    ),
}
_DECOUPLED = ("decoupled", "core_decoupled", "joined")
_OPTIONAL = ("streaming",)
_TABLES = ("output_ids",)


@contextmanager
def echo_server(folder: Path, *, core_models: bool = False) -> Iterator[Endpoint]:
    """Start the server in ``folder``, yield its endpoint once ready, and stop it."""
    _write_repository(folder / "repository", core_models)
    with running_triton(folder, list(MODELS), options=["--disable-auto-complete-config"]) as endpoint:
        yield endpoint


def _write_repository(folder: Path, core_models: bool) -> None:
    source = Path(__file__).with_name("echo_model.py").read_text(encoding="utf-8")
    for name, (inputs, outputs) in (MODELS | (CORE_MODELS if core_models else {})).items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1" / "model.py").write_text(source, encoding="utf-8")
        size = 0 if name == "llm_api" else 8
        config = [f'name: "{name}"', 'backend: "python"', f"max_batch_size: {size}"]
        if name in _DECOUPLED:
            config.append("model_transaction_policy { decoupled: true }")
        for kind, tensors in (("input", inputs), ("output", outputs)):
            for tensor, datatype in tensors.items():
                dims = "[ -1, -1 ]" if tensor in _TABLES else "[ -1 ]"
                is_optional = tensor in _OPTIONAL or (name == "mirror" and tensor != "text_input")
                optional = " optional: true" if is_optional and kind == "input" else ""
                config.append(
                    f'{kind} [ {{ name: "{tensor}" data_type: TYPE_{datatype} dims: {dims}{optional} }} ]'
                )
        (folder / name / "config.pbtxt").write_text("\n".join(config), encoding="utf-8")
