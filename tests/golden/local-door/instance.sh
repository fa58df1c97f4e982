#!/usr/bin/env bash
# One instance of the server: 2 ranks. The supervisor starts this with the instance's number.
# Rendered by trtllm-hpc 0.1.0.
set -euo pipefail
run='/scratch/ana/runs of june/local-door'
python=/opt/trtllm-hpc/bin/python3
runtime() { "$python" "$run/runtime.pyz" "$@"; }
export TRTLLM_HPC_INSTANCE="$1"
step=serve
prefix="trt${TRTLLM_HPC_JOB_ID}_${TRTLLM_HPC_INSTANCE}_"
# A signal is for the ranks; what they leave is removed below.
trap : TERM INT HUP

leader=$(runtime leader --loopback)
read -r MASTER_ADDR _ _ _ MASTER_PORT <<< "$leader"
export MASTER_ADDR MASTER_PORT

# One tritonserver for each rank; the first that fails ends the others.
status=0
runtime spawn --ntasks=2 --output="$run/logs/${step}_%t.out" \
  bash "$run/scripts/rank.sh" || status=$?

# A rank that was killed could not remove its shared memory and its scratch folder.
runtime sweep "$prefix"
exit "$status"
