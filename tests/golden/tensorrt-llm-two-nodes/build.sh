#!/usr/bin/env bash
# The commands that make the engine, a step at a time: build.sh STEP
# Rendered by trtllm-hpc 0.1.0. The job's `runtime engine` runs the steps that the cache does not have,
# with $output, the step's own folder, $quantize: the steps before it.
# By hand: output=/a/new/folder bash build.sh quantize
# What an edited script makes is kept apart in the cache.
set -euo pipefail
export run='/scratch/ana/runs of june/17'
export model='/models/it'"'"'s Llama 3'
# TensorRT-LLM starts MPI when it is imported. It is to start alone, and not to take itself for the task of a
# Slurm step, which the next command's process would be too.
for name in "${!SLURM_@}" "${!PMIX_@}" "${!PMI_@}" "${!OMPI_@}"; do
  unset "$name"
done
: "${output:?must name the folder to make}"

case "${1:-}" in
  quantize)
    cd "$run"
    python3 /tensorrtllm_backend/tensorrt_llm/examples/quantization/quantize.py \
      --model_dir "$model" \
      --tp_size 4 \
      --pp_size 2 \
      --dtype auto \
      --qformat fp8 \
      --kv_cache_dtype fp8 \
      --calib_dataset '/data/cnn dailymail' \
      --calib_size 512 \
      --seed 1234 \
      --output_dir "$output"
    ;;
  build)
    cd "$run"
    : "${quantize:?must name what the step quantize has made}"
    trtllm-build \
      --checkpoint_dir "$quantize" \
      --max_batch_size 64 \
      --max_input_len 2048 \
      --max_seq_len 3072 \
      --use_paged_context_fmha enable \
      --workers 4 \
      --max_num_tokens 8192 \
      --remove_input_padding enable \
      --tokens_per_block 64 \
      --use_fused_mlp enable \
      --bert_attention_plugin auto \
      --gpt_attention_plugin auto \
      --moe_plugin auto \
      --mamba_conv1d_plugin auto \
      --use_fp8_context_fmha disable \
      --nccl_plugin auto \
      --gpus_per_node 4 \
      --output_dir "$output"
    ;;
  *)
    echo "usage: build.sh quantize|build" >&2
    exit 2
    ;;
esac
