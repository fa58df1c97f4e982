#!/usr/bin/env bash
# One rank of the server; every task of the serve step runs this.
# Rendered by trtllm-hpc 0.1.0.
set -euo pipefail
run='/scratch/ana/runs of june/local'
rank=${TRTLLM_HPC_PROCID}
# Two jobs may share a node, and two ranks too: the name of the shared memory
# that Triton's Python backend makes carries both.
prefix="trt${TRTLLM_HPC_JOB_ID}_${rank}_"

# Containers on Slurm have no --ulimit option: take what the host allows.
ulimit -S -l "$(ulimit -H -l)"

arguments=(
  --disable-auto-complete-config
  --backend-config="python,shm-region-prefix-name=$prefix"
  --allow-gpu-metrics=false
)
if [ "$rank" -eq 0 ]; then
  # The leader: the whole repository, and the ports.
  arguments+=(
    --http-port="$TRTLLM_HPC_HTTP_PORT"
    --grpc-port="$TRTLLM_HPC_GRPC_PORT"
    --metrics-port="$TRTLLM_HPC_METRICS_PORT"
    --http-address="$TRTLLM_HPC_ADDRESS"
    --grpc-address="$TRTLLM_HPC_ADDRESS"
    --metrics-address="$TRTLLM_HPC_ADDRESS"
  )
else
  # A worker: it never returns from loading its part, and opens no port.
  arguments+=(
    --model-control-mode=explicit
    --load-model=tensorrt_llm
    --allow-http=false
    --allow-grpc=false
    --allow-metrics=false
  )
fi

exec /opt/trtllm-hpc/bin/python3 "$run/runtime.pyz" rank --rank="$rank" --world-size=2 \
  --ranks-per-node=2 --prefix="$prefix" \
  --ready-timeout-seconds=600 --hang-seconds=45 \
  --companion-start-seconds=3600 --companion-silence-seconds=120 \
  --server=pytriton -- "${arguments[@]}"
