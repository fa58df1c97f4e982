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
export TRTLLM_ORCHESTRATOR=1
export TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES=0

arguments=(
  --disable-auto-complete-config
  --backend-config="python,shm-region-prefix-name=$prefix"
)
if [ "$rank" -eq 0 ]; then
  # The leader: the whole repository, and sockets in the door's folder, which no other user may enter.
  rm -rf "$TRTLLM_HPC_SOCKETS"
  mkdir -m 700 "$TRTLLM_HPC_SOCKETS"
  arguments+=(
    --http-address="unix:$TRTLLM_HPC_SOCKETS/http"
    --grpc-address="unix:$TRTLLM_HPC_SOCKETS/grpc"
    --metrics-address="unix:$TRTLLM_HPC_SOCKETS/metrics"
  )
else
  # A worker: it never returns from loading its part, and opens no port.
  arguments+=(
    --model-control-mode=explicit
    --load-model=context
    --load-model=generation
    --allow-http=false
    --allow-grpc=false
    --allow-metrics=false
  )
fi

exec python3 "$run/runtime.pyz" rank --rank="$rank" --world-size=7 \
  --ranks-per-node=7 --prefix="$prefix" \
  --ready-timeout-seconds=600 --hang-seconds=45 \
  --instance="$TRTLLM_HPC_INSTANCE" \
  --server=tritonserver -- "${arguments[@]}"
