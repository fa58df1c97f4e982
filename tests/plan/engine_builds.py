"""Engines by release, family and engine keys, and the command lines that build them or why none does.

``tests/golden/engine-builds`` has the command lines and refusals whole, for
review. Sources are upstream's own examples at the tag of the release.
"""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from tests.plan.made_steps import cluster, found, job, line, notes, steps
from trtllm_hpc.runtime.engine_cache.recipe import BuildStep

CASES = {
    "quantization": """
# quantize.py calibrates.
0.16.0 llama {quantization: {method: fp8, calibration_dataset: /cnn, calibration_size: 32, batch_size: 4}}
0.16.0 llama {quantization: {method: int8_sq, calibration_dataset: /cnn}}
0.16.0 llama {quantization: {method: int4_awq, calibration_dataset: /cnn}}
0.16.0 llama {quantization: {method: w4a8_awq, calibration_dataset: /cnn}}
0.16.0 llama {quantization: {method: full_prec, calibration_dataset: /cnn}}
0.16.0 llama {quantization: {method: auto, auto_formats: [fp8, int4_awq], auto_bits: 5.0}}
0.16.0 llama {quantization: {kv_cache: fp8, calibration_dataset: /cnn}}
0.16.0 llama {quantization: {kv_cache: int8, calibration_dataset: /cnn}}
0.17.0 llama {quantization: {method: nvfp4, kv_cache: fp8, calibration_dataset: /cnn}}
# Samples that are downloaded are a note.
0.16.0 llama {quantization: {method: fp8}}
0.9.0 llama {quantization: {method: fp8}}
# Weights alone are quantized where they are read.
0.7.1 llama {quantization: {method: int8_wo}}
0.7.1 llama {quantization: {method: int4_wo}}
0.8.0 llama {quantization: {method: int8_wo}}
0.8.0 llama {quantization: {method: int4_wo}}
1.2.1 llama {quantization: {method: int8_wo}}
1.2.1 llama {quantization: {method: int4_wo}}
0.16.0 llama {quantization: {method: int8_wo, kv_cache: int8}}
0.16.0 llama {quantization: {method: int8_wo, kv_cache: fp8}}
0.16.0 llama {quantization: {method: int8_wo, tool: quantize}}
1.2.1 llama {quantization: {method: nvfp4, tool: convert}}
# SmoothQuant by convert_checkpoint.py.
0.16.0 llama {quantization: {method: int8_sq, tool: convert, per_token: true, per_channel: true}}
0.16.0 llama {quantization: {method: int8_sq, tool: convert, smoothquant: 0.8}}
# build.py reads what quantize.py wrote: examples/llama/README.md of 0.7.0, 'FP8 Post-Training Quantization'
# and 'AWQ'. The file is named after the family.
0.7.1 llama {quantization: {method: fp8}}
0.7.1 llama {quantization: {method: int4_awq}}
0.5.0 llama {quantization: {method: fp8}}
0.5.0 gptj {quantization: {method: fp8}}
0.5.0 falcon {quantization: {method: fp8}}
0.7.1 gptj {quantization: {method: fp8}}
0.6.0 falcon {quantization: {method: int4_awq}}
0.7.0 baichuan {quantization: {method: fp8}}
0.7.1 mistral {quantization: {method: fp8}}
# A build.py that reads nothing of quantize.py's.
0.7.1 gpt {quantization: {method: fp8}}
0.7.1 mixtral {quantization: {method: fp8}}
0.6.1 mistral {quantization: {method: fp8}}
0.7.1 chatglm {quantization: {method: int4_awq}}
0.5.0 mpt {quantization: {method: fp8}}
# Scales are computed before build.py, which reads them in the model's place: 'SmoothQuant' in the READMEs.
0.5.0 llama {tensor_parallel: 2, quantization: {method: int8_sq, smoothquant: 0.8, per_token: true}}
0.7.1 mistral {tensor_parallel: 2, quantization: {method: int8_sq, smoothquant: 0.8, per_channel: true}}
0.6.0 internlm {tensor_parallel: 2, quantization: {method: int8_sq, per_token: true, per_channel: true}}
0.7.0 baichuan {tensor_parallel: 2, quantization: {method: int8_sq, smoothquant: 0.8}}
0.6.1 bloom {tensor_parallel: 2, quantization: {method: int8_sq, smoothquant: 0.8}}
0.7.1 gpt {quantization: {method: int8_sq, smoothquant: 0.5}}
# Qwen's build.py reads them beside the model: examples/qwen/README.md.
0.8.0 qwen {max_input_len: 512, quantization: {method: int8_sq}}
# 'INT8 KV cache' of the same READMEs: with weight-only quantization, too, and beside what quantize.py wrote.
0.7.1 llama {quantization: {method: int8_wo, kv_cache: int8}}
0.6.0 gptj {quantization: {method: int8_wo, kv_cache: int8}}
0.5.0 gpt {quantization: {method: int8_wo, kv_cache: int8}}
0.7.1 llama {quantization: {method: int4_awq, kv_cache: int8}}
# Scales that somebody has computed, and those that no known program computes.
0.7.1 llama {quantization: {method: int8_sq, checkpoint: /models/sq0.5/1-gpu, per_token: true}}
0.7.1 chatglm {quantization: {method: int8_sq}}
0.6.0 opt {quantization: {kv_cache: int8}}
# Families whose build.py reads prepared weights only.
0.7.1 mpt {tensor_parallel: 4}
0.5.0 opt {tensor_parallel: 4}
# GPTQ's weights by the name of the day.
0.9.0 llama {quantization: {method: int4_gptq, checkpoint: /models/gptq, group_size: 64}}
0.10.0 llama {quantization: {method: int4_gptq, checkpoint: /models/gptq, group_size: 64}}
0.11.0 llama {quantization: {method: int4_gptq, checkpoint: /models/gptq, group_size: 64}}
# No option says that they are by groups: examples/gptneox/README.md and examples/baichuan/README.md.
0.16.0 gptneox {quantization: {method: int4_gptq, checkpoint: /models/gptq}}
0.16.0 baichuan {quantization: {method: int4_gptq, checkpoint: /models/gptq}}
# Qwen's are the model itself but in 0.8: examples/qwen/README.md, 'INT4-GPTQ'.
0.9.0 qwen {quantization: {method: int4_gptq, group_size: 128}}
0.16.0 qwen {quantization: {method: int4_gptq, group_size: 128}}
1.2.1 qwen {quantization: {method: int4_gptq, group_size: 128}}
1.2.1 qwen {quantization: {method: int4_gptq, group_size: 128, checkpoint: /models/gptq}}
0.8.0 qwen {quantization: {method: int4_gptq, checkpoint: /models/m}}
0.8.0 qwen {quantization: {method: int4_gptq}}
# QServe's weights: examples/llama/README.md, 'w4aINT8 quantization (QServe)'.
0.15.0 llama {quantization: {method: w4a8_qserve_per_group, checkpoint: /models/deepcompressor}}
1.2.1 llama {quantization: {method: w4a8_qserve_per_channel, checkpoint: /models/deepcompressor}}
0.15.0 llama {quantization: {method: w4a8_qserve_per_channel}}
1.2.1 llama {quantization: {method: w4a8_qserve_per_group}}
# A method that came later names the first release with it.
0.7.1 llama {quantization: {method: w4a8_awq}}
0.11.0 llama {quantization: {method: fp8_rowwise}}
0.16.0 llama {quantization: {method: nvfp4}}
0.7.1 gpt {quantization: {method: nvfp4}}
0.14.0 llama {quantization: {method: w4a8_qserve_per_group, checkpoint: /models/q}}
0.5.0 llama {quantization: {method: w4a8_qserve_per_channel, checkpoint: /models/q}}
0.16.0 qwen {quantization: {method: w4a8_qserve_per_group, checkpoint: /models/q}}
# Keys that go with a method.
0.16.0 llama {quantization: {method: auto, auto_bits: 5.0}}
0.16.0 llama {quantization: {method: auto, auto_formats: [fp8]}}
0.16.0 llama {quantization: {method: int4_gptq}}
0.16.0 llama {quantization: {method: fp8, smoothquant: 0.5}}
0.16.0 llama {quantization: {method: fp8, awq_block_size: 64}}
# GPUs that have it.
0.16.0 llama {quantization: {method: fp8}, site: {compute_capability: '8.0'}}
0.16.0 llama {quantization: {method: fp8, calibration_dataset: /cnn}, site: {compute_capability: '8.9'}}
0.16.0 llama {quantization: {method: w4a8_awq, kv_cache: fp8}, site: {compute_capability: '9.0'}}
0.16.0 llama {quantization: {kv_cache: fp8}, site: {compute_capability: '8.6'}}
0.16.0 llama {quantization: {method: int4_awq, calibration_dataset: /cnn}, site: {compute_capability: '8.0'}}
0.17.0 llama {quantization: {method: nvfp4}, site: {compute_capability: '9.0'}}
0.17.0 llama {quantization: {method: nvfp4, calibration_dataset: /cnn}, site: {compute_capability: '10.0'}}
0.15.0 llama {site: {compute_capability: '7.0'}}
0.16.0 llama {site: {compute_capability: '7.0'}}
""",
    "speculative": """
# examples/medusa/README.md. In 0.9 the checkpoint alone has it.
0.16.0 llama {speculative: {mode: medusa, model: /heads, heads: 4, layers: 1, max_draft_len: 63}}
0.9.0 llama {speculative: {mode: medusa, model: /heads}}
0.16.0 llama {speculative: {mode: medusa, model: /heads, heads: 4}, quantization: {method: fp8}}
0.10.0 llama {speculative: {mode: medusa, model: /heads, heads: 4}, quantization: {method: fp8}}
# examples/eagle/README.md. Its prompts are computed over the paged cache.
0.16.0 llama {speculative: {mode: eagle, model: /heads, layers: 4, max_draft_len: 63}}
0.16.0 llama {speculative: {mode: eagle, model: /heads}, paged_context_fmha: false}
# examples/redrafter/README.md.
0.16.0 llama {speculative: {mode: redrafter, model: /heads, heads: 4, max_draft_len: 5}}
# examples/lookahead/README.md: 83 draft tokens for a window, an n-gram and a set of 7.
0.16.0 llama {speculative: {mode: lookahead, max_draft_len: 83}}
# A target model, whose draft tokens another model makes.
0.16.0 llama {speculative: {mode: draft_tokens_external, max_draft_len: 10}}
0.9.0 llama {speculative: {mode: draft_tokens_external, max_draft_len: 10}}
# A way that came later.
0.14.0 llama {speculative: {mode: eagle, max_draft_len: 10, model: /heads}}
0.11.0 llama {speculative: {mode: redrafter, max_draft_len: 10, model: /heads}}
0.10.0 llama {speculative: {mode: lookahead, max_draft_len: 10}}
0.7.1 llama {speculative: {mode: medusa, max_draft_len: 10, model: /heads}}
# What a way needs.
0.16.0 llama {speculative: {mode: medusa}}
0.16.0 llama {speculative: {mode: lookahead}}
0.16.0 llama {speculative: {mode: draft_tokens_external}}
0.16.0 llama {speculative: {mode: lookahead, max_draft_len: 10, model: /heads}}
""",
    "encoder-decoder": """
# docs/encoder_decoder.md of tensorrtllm_backend v0.16.0: INPUT_LEN=1024, OUTPUT_LEN=201.
0.16.0 t5 {T5}
0.16.0 bart {T5}
# Before 0.13 the encoder's cache is switched off in other words.
0.12.0 t5 {T5, kv_cache: paged}
# The prompt's length stands for the encoder's. An answer need not be longer than the prompt.
0.16.0 t5 {T5, max_encoder_input_len: null, max_input_len: 512, max_seq_len: 1024}
0.16.0 t5 {T5, max_encoder_input_len: null, max_input_len: 2048, encoder_decoder: true}
# Older releases; the templates and the backend of 0.10 know no encoder_model_path (model_instance_state.cc).
0.7.1 t5 {}
0.9.0 t5 {}
0.10.0 t5 {T5}
0.11.0 t5 {T5}
# ModelType.DECODER_ONLY stands in the model.py of every release.
0.16.0 t5 {T5, backend: python}
# What does not go with it.
0.16.0 t5 {T5, context_fmha: true, paged_context_fmha: true, repository: {chunked_context: true}}
0.16.0 llama {encoder_decoder: true}
# One engine alone would be built, and Triton's models take text.
0.5.0 whisper {}
0.16.0 whisper {}
1.2.1 whisper {}
0.5.0 mllama {}
0.16.0 mllama {}
1.2.1 mllama {}
""",
    "steps": """
# The steps of LLaMA, and of GPT, whose programs changed a release later.
0.5.0 llama {}
0.7.1 llama {}
0.8.0 llama {}
0.16.0 llama {tensor_parallel: 2}
0.18.2 llama {}
0.19.0 llama {}
1.2.1 llama {}
0.8.0 gpt {}
0.9.0 gpt {}
0.16.0 gemma {tensor_parallel: 2}
# A profile may say where the examples are.
0.19.0 llama {site: {container: {examples: /shared/examples, python: /usr/bin/python3.12}}}
# The answer's length alone, or prompt and answer together.
0.7.1 llama {max_input_len: 1024, max_seq_len: 1536}
0.10.0 llama {max_input_len: 1024, max_seq_len: 1536}
0.11.0 llama {max_input_len: 1024, max_seq_len: 1536}
1.2.1 llama {max_input_len: 1024, max_seq_len: 1536}
# The release's own prompt length leaves no room for an answer.
0.10.0 llama {max_seq_len: 1024}
# A paged cache, and the logits.
0.7.1 llama {kv_cache: paged}
0.8.0 llama {kv_cache: paged}
0.12.0 llama {kv_cache: paged}
0.13.0 llama {kv_cache: paged, max_batch_size: 7}
1.2.1 llama {kv_cache: paged}
0.6.0 llama {gather_context_logits: true}
0.7.1 llama {gather_context_logits: true}
0.8.0 llama {gather_context_logits: true}
1.2.1 llama {gather_context_logits: true}
# Defaults that changed silently are written out.
0.9.0 llama {}
0.11.0 llama {}
0.13.0 llama {}
0.14.0 llama {}
# The attention plugin has the model's type. A type that nobody knows is a note before 0.15.
0.9.0 llama {dtype: bfloat16}
0.16.0 llama {dtype: bfloat16}
0.9.0 llama {dtype: auto}
0.15.0 llama {dtype: auto}
# An engine keeps the GPUs of a node that its ranks see; from 1.2 on the checkpoint does.
0.16.0 llama {tensor_parallel: 8, site: {gpus_per_node: 4}}
0.16.0 llama {tensor_parallel: 4, pipeline_parallel: 2, site: {gpus_per_node: 4}}
0.16.0 llama {tensor_parallel: 8, site: {gpus_per_node: 0}}
0.7.1 llama {tensor_parallel: 4, pipeline_parallel: 2, site: {gpus_per_node: 4}}
1.2.0 llama {tensor_parallel: 8, site: {gpus_per_node: 4}}
1.2.1 llama {tensor_parallel: 8, site: {gpus_per_node: 8}}
1.2.1 llama {tensor_parallel: 8, site: {gpus_per_node: 0}}
1.2.1 t5 {tensor_parallel: 2}
# GPT's build.py knows one parallelism only.
0.7.1 gpt {tensor_parallel: 4}
0.7.1 gpt {tensor_parallel: 2, pipeline_parallel: 2}
# Workers convert and build.
0.16.0 llama {workers: 8, tensor_parallel: 8}
0.7.1 llama {workers: 8, tensor_parallel: 8}
0.7.1 llama {workers: 1}
# A required option of a program, which only a person knows.
0.7.1 chatglm {}
0.7.1 chatglm {options: {build_py: [--model_name, chatglm2_6b]}}
# V1 batching is one switch less: 'remove --use_inflight_batching'.
0.7.1 llama {inflight_batching: false, repository: {batching_strategy: V1}}
""",
    "raw-options": """
# They are the last words of their program, and not written out a second time.
0.16.0 llama {options: {build: [--strip_plan, --visualize_network], convert: [--load_model_on_cpu]}}
0.16.0 llama {options: {build: [--paged_state, disable]}}
# An option with a key of its own, also by its short spelling.
0.16.0 llama {options: {build: [--use_fp8_context_fmha=enable, --log_level, verbose]}}
0.16.0 llama {options: {convert: [-sq, '0.5']}}
# A word that the release ignores is a note.
0.9.0 llama {options: {build: [--tp_size, '4']}}
# A list takes several words.
0.16.0 gpt {options: {convert: [--gpt_variant=gpt2, --nemo_rename_key, 'a:b', 'c:d']}}
# Words for adapters.
0.16.0 llama {LORA, options: {lora: [--verbose]}}
0.16.0 llama {LORA, options: {lora: [--storage-type, float32]}}
""",
}
"""Lines ``RELEASE FAMILY {engine keys}`` by file; ``site`` and ``repository`` are no engine keys."""

SHORT = {
    "T5": "max_batch_size: 8, max_encoder_input_len: 1024, max_seq_len: 201, max_beam_width: 1, "
    "plugins: {gemm: float16, bert_attention: float16, gpt_attention: float16}",
    "LORA": "max_lora_rank: 8, lora: {target_modules: [attn_q], adapters: [/adapters/a]}",
}


def recorded() -> dict[str, str]:
    """Return the files of ``tests/golden/engine-builds``."""
    return {
        f"{name}.txt": "".join(f"{text}\n" for case in cases.strip().splitlines() for text in _outcome(case))
        for name, cases in CASES.items()
    }


def _outcome(case: str) -> Iterator[str]:
    """Yield the case and, indented, its steps and notes or what is wrong with it; a comment as it is."""
    if case.startswith("#"):
        yield case
        return
    release, family, keys = case.split(" ", 2)
    for short, text in SHORT.items():
        keys = keys.replace(short, text)
    engine = {"dtype": "float16", **yaml.safe_load(keys)}
    site, repository = cluster(**engine.pop("site", {})), engine.pop("repository", {})
    made = job(release, family, engine=engine, repository=repository)
    yield case
    problems = found(made, site)
    for problem in problems:
        yield f"  {problem.code} {problem.field}: {problem.message}"
        yield f"    next: {problem.hint}"
    if not problems:
        for step in steps(made, site):
            yield from _step(step)
        yield from (f"  note: {note}" for note in notes(made))


def _step(step: BuildStep) -> Iterator[str]:
    first, *others = map(line, step.commands)
    yield f"  {step.name} of {', '.join(step.inputs)}{' on a GPU' if step.on_gpu else ''}: {first}"
    yield from (f"    {command}" for command in others)
