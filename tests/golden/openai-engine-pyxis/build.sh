#!/usr/bin/env bash
# Run one step of the engine's build: build.sh STEP
# Rendered by trtllm-hpc 0.1.0. The job's `runtime engine` runs the steps whose outputs the cache lacks,
# with $output, the step's own folder, $convert: outputs of earlier steps.
# By hand: output=/a/new/folder bash build.sh convert
# The cache keeps outputs of an edited script apart.
set -euo pipefail
export run='/scratch/ana/runs of june/17'
export model=/models/llama
# Importing TensorRT-LLM starts MPI. Without these variables MPI starts alone; with them each command's process would
# take itself for the same task of the Slurm step.
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
