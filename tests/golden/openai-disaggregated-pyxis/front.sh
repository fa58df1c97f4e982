#!/usr/bin/env bash
# Start the front of a disaggregated run: it sends each prompt to a server of the context phase, and lets a server of
# the generation phase answer. The supervisor writes front.yaml and starts this script once every server is ready.
# Rendered by trtllm-hpc 0.1.0.
set -euo pipefail
run='/scratch/ana/runs of june/17'
nodes_from() { scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n "$(($1 + 1)),$(($1 + $2))p" | paste -sd, -; }
exec env -u PYTHONPATH PYTHONNOUSERSITE=1 \
srun --nodelist="$(nodes_from "0" 1)" --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=1 \
  --mpi=none --kill-on-bad-exit=1 --overlap --cpu-bind=none \
  --open-mode=append --output="$run/logs/front_%t.out" \
  --container-image='nvcr.io#nvidia/tensorrt-llm/release:1.2.0' \
  --container-name="$TRTLLM_HPC_CONTAINER:no_exec" \
  --container-mounts="$TRTLLM_HPC_MOUNTS" \
  --no-container-mount-home \
  python3 "$run/runtime.pyz" alone trtllm-serve disaggregated --server_start_timeout=600 --request_timeout=180 --config_file="$run/front.yaml"
