#!/usr/bin/env bash
# One rank of the server; every task of the serve step runs this.
# Rendered by trtllm-hpc 0.1.0.
set -euo pipefail
run='/scratch/ana/runs of june/17'
rank=${SLURM_PROCID}
# Two jobs may share a node, and two ranks too: the name of the shared memory
# that Triton's Python backend makes carries both. instance.sh removes what begins
# with this prefix without the rank.
prefix="trt${TRTLLM_HPC_JOB_ID}_${TRTLLM_HPC_INSTANCE}_${rank}_"

# Containers on Slurm have no --ulimit option: take what the host allows.
ulimit -S -l "$(ulimit -H -l)"

exec /opt/trtllm-hpc/bin/python3 "$run/runtime.pyz" rank --rank="$rank" --world-size=2 \
  --ranks-per-node=1 --prefix="$prefix" \
  --ready-timeout-seconds=600 --hang-seconds=45 \
  --spec="$run"/server.json
