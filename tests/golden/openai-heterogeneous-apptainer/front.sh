#!/usr/bin/env bash
# The process in front of the servers of a disaggregated run: it has each prompt computed by one phase, and the answer
# by the other. The supervisor starts this once every server is ready, and has written front.yaml.
# Rendered by trtllm-hpc 0.1.0.
set -euo pipefail
run='/scratch/ana/runs of june/openai-heterogeneous-apptainer'
nodes_from() { scontrol show hostnames "$SLURM_JOB_NODELIST_HET_GROUP_0" | sed -n "$(($1 + 1)),$(($1 + $2))p" | paste -sd, -; }
exec env -u PYTHONPATH PYTHONNOUSERSITE=1 \
srun --het-group=0 --gpus-per-node=h100:8 --nodelist="$(nodes_from "0" 1)" --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=1 \
  --mpi=none --kill-on-bad-exit=1 --overlap --cpu-bind=none \
  --open-mode=append --output="$run/logs/front_%t.out" \
  apptainer exec --no-home --nv --bind '/scratch/ana/runs of june/openai-heterogeneous-apptainer:/scratch/ana/runs of june/openai-heterogeneous-apptainer' --bind /models/DeepSeek-V3:/models/DeepSeek-V3:ro /images/trtllm.sif \
  python3 "$run/runtime.pyz" alone trtllm-serve disaggregated --server_start_timeout=600 --request_timeout=180 --config_file="$run/front.yaml"
