#!/usr/bin/env bash
# Run one step of the engine's build: build.sh STEP
# Rendered by trtllm-hpc 0.1.0. The job's `runtime engine` runs the steps whose outputs the cache lacks,
# with $output, the step's own folder.
# By hand: output=/a/new/folder bash build.sh engine
# The cache keeps outputs of an edited script apart.
set -euo pipefail
export run='/scratch/ana/runs of june/17'
: "${output:?must name the folder to make}"

case "${1:-}" in
  engine)
    cd "$run"
    /opt/trtllm-hpc/bin/python3 -m trtllm_hpc.reference.build \
      --output "$output" \
      --synthetic tiny-llama \
      --tensor-parallel 2 \
      --dtype float32 \
      --max-batch-size 8 \
      --max-input-len 256 \
      --max-seq-len 512 \
      --tokens-per-block 64
    ;;
  *)
    echo "usage: build.sh engine" >&2
    exit 2
    ;;
esac
