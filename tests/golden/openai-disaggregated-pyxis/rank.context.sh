#!/usr/bin/env bash
# Start one rank of the server. Every task of the serve step runs this script.
# Rendered by trtllm-hpc 0.1.0.
set -euo pipefail
run='/scratch/ana/runs of june/17'
rank=${SLURM_PROCID}

# Several instances share the node's cores; by default each rank would start one thread per core.
cores=$(($(nproc) / 8))
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((cores > 1 ? cores : 1))}"

# This instance's share of the node's GPUs.
IFS=, read -ra gpus <<< "${CUDA_VISIBLE_DEVICES:-0,1,2,3,4,5,6,7}"
firsts=([0]=0 [1]=4)
CUDA_VISIBLE_DEVICES=$(IFS=,; echo "${gpus[*]:firsts[TRTLLM_HPC_INSTANCE]:4}")
export CUDA_VISIBLE_DEVICES

# Raise the limit on locked memory to the host's: containers on Slurm have no --ulimit option.
ulimit -S -l "$(ulimit -H -l)"

exec python3 "$run/runtime.pyz" rank --rank="$rank" --world-size=4 \
  --ranks-per-node=4 \
  --ready-timeout-seconds=600 --hang-seconds=45 --step="serve.$TRTLLM_HPC_INSTANCE" \
  --spec="$run"/server.context.json
