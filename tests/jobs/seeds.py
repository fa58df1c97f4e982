"""The commands of upstream's guides, word for word, and the job file that does each workflow.

Variables of the guides' shell stand in braces: they are folders, which the
toolkit chooses itself. Where a word of a guide is not in the plan, or a word of
the plan not in the guide, the reason stands beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Guide:
    """One command of a guide and what becomes of it."""

    job: str
    """Name of the job file."""
    place: str
    """Where it stands: file, section, and the tag of tensorrtllm_backend with the same text."""
    program: str
    words: str
    """As the guide has them, after the program's name."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Options of the guide that the plan has not, with the reason."""
    instead: Mapping[str, str] = field(default_factory=dict)
    """What the plan says for an option of the guide, in words of the release."""
    added: Sequence[str] = ()
    """Options of the plan that the guide has not: the release's own defaults, which other releases change."""
    node: bool = False
    """Whether the GPUs of a node are added too, which the engine keeps."""


CHANGED = (
    "--bert_attention_plugin",
    "--max_batch_size",
    "--max_num_tokens",
    "--moe_plugin",
    "--mamba_conv1d_plugin",
    "--nccl_plugin",
    "--tokens_per_block",
    "--use_fp8_context_fmha",
    "--use_paged_context_fmha",
)
"""Options of trtllm-build from 0.11 on whose default was another one before, or is after."""
README = "tensorrtllm_backend_readme.md"
MULTI = "llama_multi_instance.md, 'Create the engines' (v0.11.0)"
DISAGGREGATED = "docs/llama.md (v0.15.0), which disaggregated_serving.md names for its engine"
END_TO_END = "llama_end_to_end.md"
IFB = "inflight_batching.md (v0.8.0)"
IGNORED = "0.9.0 takes it and does nothing with it: the layout comes from the checkpoint"

GUIDES: Sequence[Guide] = (
    Guide(
        "readme-gpt2-tp4",
        f"{README}, 'Prepare TensorRT-LLM engines'",
        "convert_checkpoint.py",
        "--model_dir gpt2 --dtype float16 --tp_size 4 --output_dir ./c-model/gpt2/fp16/4-gpu",
    ),
    Guide(
        "readme-gpt2-tp4",
        f"{README}, 'Prepare TensorRT-LLM engines'",
        "trtllm-build",
        "--checkpoint_dir ./c-model/gpt2/fp16/4-gpu --gpt_attention_plugin float16 "
        "--remove_input_padding enable --kv_cache_type paged --gemm_plugin float16 "
        "--output_dir /engines/gpt/fp16/4-gpu",
        left_out={"--kv_cache_type": "0.11.0 has no such option, it came with 0.13.0"},
        instead={"--kv_cache_type": "--paged_kv_cache enable"},
        added=[*CHANGED, "--use_custom_all_reduce"],
        node=True,
    ),
    Guide(
        "readme-llama3-70b-tp4-pp2",
        f"{README}, 'Tensor Parallelism, Pipeline Parallelism and Expert Parallelism'",
        "convert_checkpoint.py",
        "--model_dir ./tmp/llama/70B/hf/ --output_dir ./tllm_checkpoint_8gpu_tp4_pp2 --dtype float16 "
        "--tp_size 4 --pp_size 2",
    ),
    Guide(
        "readme-llama3-70b-tp4-pp2",
        f"{README}, 'Tensor Parallelism, Pipeline Parallelism and Expert Parallelism'",
        "trtllm-build",
        "--checkpoint_dir ./tllm_checkpoint_8gpu_tp4_pp2 "
        "--output_dir ./tmp/llama/70B/trt_engines/fp16/8-gpu/ --gemm_plugin auto",
        added=[*CHANGED, "--use_fused_mlp", "--gpt_attention_plugin", "--remove_input_padding"],
        node=True,
    ),
    Guide(
        "readme-mixtral-8x22b-ep",
        f"{README}, 'Tensor Parallelism, Pipeline Parallelism and Expert Parallelism'",
        "convert_checkpoint.py",
        "--model_dir ./Mixtral-8x22B-v0.1 --output_dir ./tllm_checkpoint_mixtral_8gpu --dtype float16 "
        "--tp_size 8 --moe_tp_size 2 --moe_ep_size 4",
    ),
    Guide(
        "readme-mixtral-8x22b-ep",
        f"{README}, 'Tensor Parallelism, Pipeline Parallelism and Expert Parallelism'",
        "trtllm-build",
        "--checkpoint_dir ./tllm_checkpoint_mixtral_8gpu --output_dir ./trt_engines/mixtral/tp2ep4 "
        "--gemm_plugin float16",
        added=[*CHANGED, "--use_fused_mlp", "--gpt_attention_plugin", "--remove_input_padding"],
        node=True,
    ),
    Guide(
        "ifb-llama-7b",
        f"{IFB}, 'Build TensorRT-LLM engine for inflight batching'",
        "build.py",
        "--model_dir ${model_directory} --dtype bfloat16 --use_gpt_attention_plugin bfloat16 "
        "--use_inflight_batching --paged_kv_cache --remove_input_padding --use_gemm_plugin bfloat16 "
        "--output_dir engines/bf16/1-gpu/",
        added=["--tokens_per_block", "--world_size", "--tp_size"],
    ),
    Guide(
        "ifb-gpt",
        f"{IFB}, 'Build TensorRT-LLM engine for inflight batching'",
        "build.py",
        "--model_dir=${model_directory} --dtype float16 --use_inflight_batching "
        "--use_gpt_attention_plugin float16 --paged_kv_cache --use_gemm_plugin float16 "
        "--remove_input_padding --use_layernorm_plugin float16 --hidden_act gelu "
        "--output_dir=engines/fp16/1-gpu",
        added=["--tokens_per_block", "--world_size"],
    ),
    Guide(
        "llama3-8b-end-to-end",
        f"{END_TO_END}, 'Convert hugging face checkpoint to TRT checkpoint'",
        "convert_checkpoint.py",
        "--model_dir ${model_path} --dtype float16 --tp_size 1 --output_dir ${trt_model_path}",
    ),
    Guide(
        "llama3-8b-end-to-end",
        f"{END_TO_END}, 'Compile TRT checkpoint to TRT engine', with its chunked prompt flags",
        "trtllm-build",
        "--checkpoint_dir=${trt_model_path} --gpt_attention_plugin=float16 --gemm_plugin=float16 "
        "--remove_input_padding=enable --paged_kv_cache=enable --tp_size=1 --max_batch_size=256 "
        "--max_input_len=2048 --max_output_len=1024 --max_num_tokens=1024 --opt_num_tokens=1024 "
        "--output_dir=${trt_engine_path} --context_fmha=enable --use_paged_context_fmha=enable "
        "--context_fmha_fp32_acc=enable --multi_block_mode=enable",
        left_out={"--tp_size": IGNORED},
        added=[
            *("--bert_attention_plugin", "--moe_plugin", "--mamba_conv1d_plugin", "--tokens_per_block"),
            *("--use_custom_all_reduce", "--use_fp8_context_fmha"),
        ],
    ),
    Guide(
        "llama2-7b-multi-instance",
        MULTI,
        "convert_checkpoint.py",
        "--model_dir ${HF_LLAMA_MODEL} --output_dir ${UNIFIED_CKPT_PATH} --dtype float16 --tp_size 2",
    ),
    Guide(
        "llama2-7b-multi-instance",
        MULTI,
        "trtllm-build",
        "--checkpoint_dir ${UNIFIED_CKPT_PATH} --remove_input_padding enable --gpt_attention_plugin float16 "
        "--context_fmha enable --gemm_plugin float16 --output_dir ${ENGINE_PATH} --paged_kv_cache enable "
        "--max_batch_size 64",
        added=[*(name for name in CHANGED if name != "--max_batch_size"), "--use_custom_all_reduce"],
        node=True,
    ),
    Guide(
        "disaggregated-llama",
        DISAGGREGATED,
        "convert_checkpoint.py",
        "--model_dir ${HF_LLAMA_MODEL} --output_dir ${UNIFIED_CKPT_PATH} --dtype float16",
        added=["--tp_size"],
    ),
    Guide(
        "disaggregated-llama",
        DISAGGREGATED,
        "trtllm-build",
        "--checkpoint_dir ${UNIFIED_CKPT_PATH} --remove_input_padding enable --gpt_attention_plugin float16 "
        "--context_fmha enable --gemm_plugin float16 --output_dir ${ENGINE_PATH} --kv_cache_type paged "
        "--max_batch_size 64",
        added=[*(name for name in CHANGED if name != "--max_batch_size"), "--use_fused_mlp"],
    ),
)

LORA = (
    "--model_dir ${BASE_MODEL} --dtype float16 --remove_input_padding --use_gpt_attention_plugin float16 "
    "--enable_context_fmha --use_gemm_plugin float16 --output_dir /tmp/llama_7b_with_lora_qkv "
    "--max_batch_size 128 --max_input_len 512 --max_output_len 50 --use_lora_plugin float16 "
    "--lora_target_modules attn_q attn_k attn_v --use_inflight_batching --paged_kv_cache --max_lora_rank 8 "
    "--world_size 1 --tp_size 1"
)
"""inflight_batching.md, 'Running LoRA inference with inflight batching': for LLaMA's build.py."""

LORA_IN_0_8: Mapping[str, tuple[str, str]] = {
    "--dtype": ("convert", "--dtype float16"),
    "--remove_input_padding": ("build", "--remove_input_padding enable"),
    "--use_gpt_attention_plugin": ("build", "--gpt_attention_plugin float16"),
    "--enable_context_fmha": ("build", "--context_fmha enable"),
    "--use_gemm_plugin": ("build", "--gemm_plugin float16"),
    "--max_batch_size": ("build", "--max_batch_size 128"),
    "--max_input_len": ("build", "--max_input_len 512"),
    "--max_output_len": ("build", "--max_output_len 50"),
    "--use_lora_plugin": ("build", "--lora_plugin float16"),
    "--lora_target_modules": ("convert", "--lora_target_modules attn_q attn_k attn_v"),
    "--paged_kv_cache": ("build", "--paged_kv_cache enable"),
    "--max_lora_rank": ("convert", "--max_lora_rank 8"),
    "--tp_size": ("convert", "--tp_size 1"),
}
"""The same in 0.8.0: which program takes it, and in which words."""

LORA_CONVERT = (
    "-i Japanese-Alpaca-LoRA-7b-v0 -o Japanese-Alpaca-LoRA-7b-v0-weights --storage-type float16",
    "-i luotuo-lora-7b-0.1 -o luotuo-lora-7b-0.1-weights --storage-type float16",
)
"""inflight_batching.md: ``hf_lora_convert.py``, once for each adapter."""
