"""Small model templates, laid out as upstream lays them for each release.

Written here: the names of models, tensors and placeholders are upstream's,
the texts are not. A template has every placeholder that the release's has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from trtllm_hpc.engines.template_values import GROUPS
from trtllm_hpc.tensorrt_llm.releases.placeholders import Placeholder, placeholders_of

RELEASES = ("0.9.0", "0.12.0", "0.16.0", "0.17.0", "0.21.0", "1.2.0")

Tensors = Iterable[tuple[str, str, str]]
"""Name, data type (``TYPE_`` left out, or a placeholder), and ``needed`` or ``optional``."""

_TEXT_INPUTS = (
    ("text_input", "STRING", "needed"),
    ("max_tokens", "INT32", "needed"),
    ("bad_words", "STRING", "optional"),
    ("stop_words", "STRING", "optional"),
)
_TEXT_OUTPUTS = (("text_output", "STRING", "needed"), ("context_logits", "${logits_datatype}", "needed"))
_TOKEN_INPUTS = (
    ("input_ids", "INT32", "needed"),
    ("input_lengths", "INT32", "needed"),
    ("request_output_len", "INT32", "needed"),
    ("encoder_input_features", "${encoder_input_features_data_type}", "optional"),
    ("prompt_embedding_table", "${prompt_embedding_table_data_type}", "optional"),
    ("context_phase_params", "UINT8", "optional"),
)
_TOKEN_OUTPUTS = (
    ("output_ids", "INT32", "needed"),
    ("sequence_length", "INT32", "needed"),
    ("context_logits", "${logits_datatype}", "needed"),
    ("context_phase_params", "UINT8", "needed"),
)
_INPUTS: Mapping[str, Tensors] = {
    "ensemble": _TEXT_INPUTS,
    "preprocessing": (
        ("QUERY", "STRING", "needed"),
        ("REQUEST_OUTPUT_LEN", "INT32", "needed"),
        ("BAD_WORDS_DICT", "STRING", "optional"),
        ("STOP_WORDS_DICT", "STRING", "optional"),
    ),
    "tensorrt_llm": _TOKEN_INPUTS,
    "postprocessing": (("TOKENS_BATCH", "INT32", "needed"), ("SEQUENCE_LENGTH", "INT32", "needed")),
    "tensorrt_llm_bls": _TEXT_INPUTS,
    "disaggregated_serving_bls": _TOKEN_INPUTS[:3],
}
_OUTPUTS: Mapping[str, Tensors] = {
    "ensemble": _TEXT_OUTPUTS,
    "preprocessing": (
        ("INPUT_ID", "INT32", "needed"),
        ("REQUEST_INPUT_LEN", "INT32", "needed"),
        ("REQUEST_OUTPUT_LEN", "INT32", "needed"),
    ),
    "tensorrt_llm": _TOKEN_OUTPUTS,
    "postprocessing": (("OUTPUT", "STRING", "needed"),),
    "tensorrt_llm_bls": _TEXT_OUTPUTS,
    "disaggregated_serving_bls": _TOKEN_OUTPUTS,
}
_STEPS = """ensemble_scheduling {
  step [
    {
      model_name: "preprocessing"
      model_version: -1
      input_map { key: "QUERY" value: "text_input" }
      input_map { key: "REQUEST_OUTPUT_LEN" value: "max_tokens" }
      input_map { key: "BAD_WORDS_DICT" value: "bad_words" }
      input_map { key: "STOP_WORDS_DICT" value: "stop_words" }
      output_map { key: "INPUT_ID" value: "_INPUT_ID" }
      output_map { key: "REQUEST_INPUT_LEN" value: "_REQUEST_INPUT_LEN" }
      output_map { key: "REQUEST_OUTPUT_LEN" value: "_REQUEST_OUTPUT_LEN" }
    },
    {
      model_name: "tensorrt_llm"
      model_version: -1
      input_map { key: "input_ids" value: "_INPUT_ID" }
      input_map { key: "input_lengths" value: "_REQUEST_INPUT_LEN" }
      input_map { key: "request_output_len" value: "_REQUEST_OUTPUT_LEN" }
      output_map { key: "output_ids" value: "_TOKENS_BATCH" }
      output_map { key: "sequence_length" value: "_SEQUENCE_LENGTH" }
      output_map { key: "context_logits" value: "context_logits" }
    },
    {
      model_name: "postprocessing"
      model_version: -1
      input_map { key: "TOKENS_BATCH" value: "_TOKENS_BATCH" }
      input_map { key: "SEQUENCE_LENGTH" value: "_SEQUENCE_LENGTH" }
      output_map { key: "OUTPUT" value: "text_output" }
    }
  ]
}
"""


def write_all_models(folder: Path, version: str, sources: Mapping[str, str] | None = None) -> Path:
    """``all_models`` of a release; ``sources`` are texts of ``1/model.py``, by model."""
    all_models = folder / "all_models"
    for model, group in GROUPS.items():
        here = placeholders_of(version, group, model)
        if here or model == "ensemble":  # that of 0.5 has numbers only
            template = all_models / group / model
            (template / "1").mkdir(parents=True)
            (template / "config.pbtxt").write_text(_config(version, model, here), encoding="utf-8")
            _write_sources(template / "1", model, (sources or {}).get(model, "# a model\n"))
    return all_models


_LLM_API_INPUTS = (("text_input", "STRING", "needed"), ("sampling_param_max_tokens", "INT32", "optional"))


def write_llmapi(folder: Path, source: str = "# a model\n") -> Path:
    """``all_models`` with the LLM API's model alone: no placeholders, and a ``model.yaml``."""
    template = folder / "all_models" / "llmapi" / "tensorrt_llm"
    (template / "1").mkdir(parents=True)
    lines = ['name: "tensorrt_llm"', 'backend: "python"', "instance_group [ { count: 1 kind: KIND_CPU } ]"]
    lines += [_tensors("input", _LLM_API_INPUTS, {})]
    lines += [_tensors("output", (("text_output", "STRING", "needed"),), {})]
    (template / "config.pbtxt").write_text("\n".join(lines), encoding="utf-8")
    (template / "1" / "model.py").write_text(source, encoding="utf-8")
    (template / "1" / "helpers.py").write_text("# its helpers\n", encoding="utf-8")
    (template / "1" / "model.yaml").write_text("model: some-model/from-the-hub\n", encoding="utf-8")
    return folder / "all_models"


def _write_sources(folder: Path, model: str, source: str) -> None:
    if model == "ensemble":
        (folder / ".tmp").touch()
        return
    (folder / "model.py").write_text(source, encoding="utf-8")
    if model == "tensorrt_llm_bls":
        (folder / "lib").mkdir()
        (folder / "lib" / "decode.py").write_text("# what the model imports\n", encoding="utf-8")
        (folder / "__pycache__").mkdir()
        (folder / "__pycache__" / "model.pyc").touch()


def _config(version: str, model: str, here: Mapping[str, Placeholder]) -> str:
    """The text of one template, with what makes reading upstream's hard: comments, commas, tabs."""
    parts = [
        '# It\'s a template: ${not_a_placeholder}, "quoted" and not.',
        f'name: "{model}"',
        _backend(model, here),
        f"max_batch_size: {_or('triton_max_batch_size', here, '128')}",
    ]
    if "decoupled_mode" in here:
        parts.append("model_transaction_policy {\n  decoupled: ${decoupled_mode}\n}")
    if "max_queue_delay_microseconds" in here:
        parts.append(_batching(here))
    parts += [_tensors("input", _INPUTS[model], here), _tensors("output", _OUTPUTS[model], here)]
    if model == "ensemble":
        return "\n".join([*parts, _STEPS])
    count = next((f"${{{name}}}" for name, known in here.items() if known.place == "instances"), "1")
    parts.append(f"instance_group [\n  {{\n    count: {count}\n\tkind : KIND_CPU\n  }}\n]")
    parts += [_parameter(name, known) for name, known in here.items()]
    return "\n".join(part for part in parts if part) + "\n"


def _backend(model: str, here: Mapping[str, Placeholder]) -> str:
    if model == "ensemble":
        return 'platform: "ensemble"'
    if model == "tensorrt_llm":
        return f'backend: "{_or("triton_backend", here, "tensorrtllm")}"'
    return 'backend: "python"'


def _batching(here: Mapping[str, Placeholder]) -> str:
    lines = [
        "dynamic_batching {",
        "    preferred_batch_size: [ ${triton_max_batch_size} ]",
        "    max_queue_delay_microseconds: ${max_queue_delay_microseconds}",
    ]
    if "max_queue_size" in here:
        lines.append("    default_queue_policy: { max_queue_size: ${max_queue_size} }")
    return "\n".join([*lines, "}"])


def _tensors(direction: str, tensors: Tensors, here: Mapping[str, Placeholder]) -> str:
    blocks = []
    for name, kind, need in tensors:
        placeholder = kind[2:-1] if kind.startswith("${") else None
        if placeholder is not None and placeholder not in here:
            kind = "FP32" if placeholder == "logits_datatype" else "FP16"
        word = kind if kind.startswith("${") else f"TYPE_{kind}"
        optional = "\n    optional: true" if need == "optional" else ""
        blocks.append(f'  {{\n    name: "{name}"\n    data_type: {word}\n    dims: [ -1 ]{optional}\n  }}')
    return f"{direction} [\n" + ",\n".join(blocks) + "\n]"


def _parameter(name: str, known: Placeholder) -> str:
    key = (known.place or "").removeprefix("parameters.")
    if key == known.place or not key:
        return ""
    return f'parameters: {{\n  key: "{key}"\n  value: {{\n    string_value: "${{{name}}}"\n  }}\n}}'


def _or(name: str, here: Mapping[str, Placeholder], otherwise: str) -> str:
    return f"${{{name}}}" if name in here else otherwise
