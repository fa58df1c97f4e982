#!/usr/bin/env bash
# The process in front of the servers of a disaggregated run: it has each prompt computed by one phase, and the answer
# by the other. The supervisor starts this once every server is ready, and has written front.yaml.
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
