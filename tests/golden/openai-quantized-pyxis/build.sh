#!/usr/bin/env bash
# The commands that make the engine, a step at a time: build.sh STEP
# Rendered by trtllm-hpc 0.1.0. The job's `runtime engine` runs the steps that the cache does not have,
# with $output, the step's own folder.
# By hand: output=/a/new/folder bash build.sh quantize
# What an edited script makes is kept apart in the cache.
set -euo pipefail
export run='/scratch/ana/runs of june/17'
export model='/models/Llama 3.1 8B'
# TensorRT-LLM starts MPI when it is imported. It is to start alone, and not to take itself for the task of a
# Slurm step, which the next command's process would be too.
for name in "${!SLURM_@}" "${!PMIX_@}" "${!PMI_@}" "${!OMPI_@}"; do
  unset "$name"
done
: "${output:?must name the folder to make}"

case "${1:-}" in
  quantize)
    cd "$run"
    python3 "$run"/runtime.pyz quantize \
      --model "$model" \
      --output "$output"'/Llama 3.1 8B-fp8' \
      --method fp8 \
      --kv-cache fp8 \
      --calibration-dataset /texts
    ;;
  *)
    echo "usage: build.sh quantize" >&2
    exit 2
    ;;
esac
