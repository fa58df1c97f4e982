#!/usr/bin/env bash
# The commands that make the engine, a step at a time: build.sh STEP
# Rendered by trtllm-hpc 0.1.0. The job's `runtime engine` runs the steps that the cache does not have,
# with $output, the step's own folder, $convert: the steps before it.
# By hand: output=/a/new/folder bash build.sh convert
# What an edited script makes is kept apart in the cache.
set -euo pipefail
export run='/scratch/ana/runs of june/17'
export model=/models/llama
# TensorRT-LLM starts MPI when it is imported. It is to start alone, and not to take itself for the task of a
# Slurm step, which the next command's process would be too.
for name in "${!SLURM_@}" "${!PMIX_@}" "${!PMI_@}" "${!OMPI_@}"; do
  unset "$name"
done
: "${output:?must name the folder to make}"

case "${1:-}" in
  convert)
    cd "$run"
    python3 /app/examples/models/core/llama/convert_checkpoint.py \
      --model_dir "$model" \
      --tp_size 2 \
      --dtype auto \
      --output_dir "$output"
    python3 "$run"/runtime.pyz gpus-per-node 2 "$output"
    ;;
  build)
    cd "$run"
    : "${convert:?must name what the step convert has made}"
    trtllm-build \
      --checkpoint_dir "$convert" \
      --max_seq_len 4096 \
      --max_batch_size 2048 \
      --max_num_tokens 8192 \
      --remove_input_padding enable \
      --tokens_per_block 32 \
      --use_fused_mlp enable \
      --bert_attention_plugin auto \
      --gpt_attention_plugin auto \
      --use_paged_context_fmha enable \
      --moe_plugin auto \
      --mamba_conv1d_plugin auto \
      --use_fp8_context_fmha enable \
      --nccl_plugin auto \
      --output_dir "$output"
    ;;
  *)
    echo "usage: build.sh convert|build" >&2
    exit 2
    ;;
esac
