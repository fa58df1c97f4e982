#!/usr/bin/env bash
# One rank of the server; every task of the serve step runs this.
# Rendered by trtllm-hpc 0.1.0.
set -euo pipefail
run='/scratch/ana/runs of june/17'
rank=${SLURM_PROCID}
# Two jobs may share a node, and two ranks too: the name of the shared memory
# that Triton's Python backend makes carries both.
prefix="trt${TRTLLM_HPC_JOB_ID}_${TRTLLM_HPC_INSTANCE}_${rank}_"

# Containers on Slurm have no --ulimit option: take what the host allows.
ulimit -S -l "$(ulimit -H -l)"

# The door passes requests on to this port of the leader's node.
TRTLLM_HPC_OPENAI=127.0.0.1:0
if [ "$rank" -eq 0 ]; then
  TRTLLM_HPC_OPENAI="127.0.0.1:$(<"$TRTLLM_HPC_SOCKETS.port")"
fi
export TRTLLM_HPC_OPENAI
arguments=(
  '/models/Llama 3.1 8B'
  --backend=pytorch
  --tp_size=1
  --pp_size=1
  --gpus_per_node=1
  --max_batch_size=64
  --max_num_tokens=8192
  '--extra_llm_api_options=/scratch/ana/runs of june/17/llm_api.yaml'
  --host="${TRTLLM_HPC_OPENAI%:*}"
  --port="${TRTLLM_HPC_OPENAI##*:}"
)

exec python3 "$run/runtime.pyz" rank --rank="$rank" --world-size=1 \
  --ranks-per-node=1 --prefix="$prefix" \
  --ready-timeout-seconds=600 --hang-seconds=45 \
  --instance="$TRTLLM_HPC_INSTANCE" \
  --server=trtllm-serve --frontend=openai --launcher=trtllm-llmapi-launch -- "${arguments[@]}"
