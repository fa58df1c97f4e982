#!/usr/bin/env bash
# Start the proxy on a node other than the job's first, for the instances whose rank 0 runs there.
# The supervisor starts this script with the node's number within the job and the numbers of these instances.
# Rendered by trtllm-hpc 0.1.0.
set -euo pipefail
run='/scratch/ana/runs of june/17'
nodes_from() { scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n "$(($1 + 1)),$(($1 + $2))p" | paste -sd, -; }
exec srun --nodelist="$(nodes_from "$1" 1)" --nodes=1 --ntasks=1 --mpi=none --overlap \
  --open-mode=append --output="$run/logs/proxy.out" \
  /opt/trtllm-hpc/bin/python3 "$run/runtime.pyz" proxy --node="$1" --program=haproxy --kinds=openai "${@:2}"
