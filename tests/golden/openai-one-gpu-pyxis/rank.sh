#!/usr/bin/env bash
# Start one rank of the server. Every task of the serve step runs this script.
# Rendered by trtllm-hpc 0.1.0.
set -euo pipefail
run='/scratch/ana/runs of june/17'
rank=${SLURM_PROCID}

# Raise the limit on locked memory to the host's: containers on Slurm have no --ulimit option.
ulimit -S -l "$(ulimit -H -l)"

exec python3 "$run/runtime.pyz" rank --rank="$rank" --world-size=1 \
  --ranks-per-node=1 \
  --ready-timeout-seconds=600 --hang-seconds=45 \
  --spec="$run"/server.json
