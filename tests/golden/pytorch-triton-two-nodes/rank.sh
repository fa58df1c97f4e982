#!/usr/bin/env bash
# One rank of the server; every task of the serve step runs this.
# Rendered by trtllm-hpc 0.1.0.
set -euo pipefail
run='/scratch/ana/runs of june/17'
rank=${SLURM_PROCID}
# Two jobs may share a node, and two ranks too: the name of the shared memory
# that Triton's Python backend makes carries both.
prefix="trt${TRTLLM_HPC_JOB_ID}_${rank}_"

# Containers on Slurm have no --ulimit option: take what the host allows.
ulimit -S -l "$(ulimit -H -l)"

arguments=(
  --disable-auto-complete-config
  --backend-config="python,shm-region-prefix-name=$prefix"
)
if [ "$rank" -eq 0 ]; then
  # The leader: the whole repository, and the ports.
  arguments+=(
    --http-port="$TRTLLM_HPC_HTTP_PORT"
    --grpc-port="$TRTLLM_HPC_GRPC_PORT"
    --metrics-port="$TRTLLM_HPC_METRICS_PORT"
  )
else
  # A worker: it never returns from loading its part, and opens no port.
  arguments+=(
    --model-control-mode=explicit
    --allow-http=false
    --allow-grpc=false
    --allow-metrics=false
  )
fi

exec python3 "$run/runtime.pyz" rank --rank="$rank" --world-size=8 \
  --ranks-per-node=4 --prefix="$prefix" \
  --ready-timeout-seconds=600 --hang-seconds=45 \
  --server=tritonserver --launcher=trtllm-llmapi-launch -- "${arguments[@]}"
