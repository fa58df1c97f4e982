#!/usr/bin/env bash
# One instance of the server: 4 ranks. The supervisor starts this script with the instance's number.
# Rendered by trtllm-hpc 0.1.0.
set -euo pipefail
run='/scratch/ana/runs of june/17'
python=/opt/trtllm-hpc/bin/python3
export TRTLLM_HPC_INSTANCE="$1"
step=serve."$TRTLLM_HPC_INSTANCE"
# Survive signals: the ranks handle them, and this script still has to clean up.
trap : TERM INT HUP

# The number of the instance's first node within the job or component, where rank 0 runs, and rank 0's address.
nodes_from() { scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n "$(($1 + 1)),$(($1 + $2))p" | paste -sd, -; }
firsts=([0]=0 [1]=0)
first=${firsts[TRTLLM_HPC_INSTANCE]}
leader=$(srun --nodelist="$(nodes_from "$first" 1)" --nodes=1 --ntasks=1 --mpi=none --overlap \
  "$python" "$run/runtime.pyz" leader)
read -r MASTER_ADDR _ _ _ MASTER_PORT <<< "$leader"
export MASTER_ADDR MASTER_PORT

# Start one server process for each rank; the first that fails ends the others.
status=0
tasks=(--ntasks=4 --ntasks-per-node=4 --cpus-per-task=2)
tasks+=(--mpi=pmix --distribution=block --output="$run/logs/${step}_%t.out")
launcher=()
if [ "$TRTLLM_HPC_MPI" = mpirun ]; then
  tasks=(--ntasks=1 --ntasks-per-node=1 --cpus-per-task=8)
  tasks+=(--mpi=none --output="$run/logs/serve.out")
  launcher=(bash "$run/scripts/mpirun.sh" "${step}" 4)
fi
env -u PYTHONPATH PYTHONNOUSERSITE=1 \
srun --nodelist="$(nodes_from "$first" 1)" --nodes=1 "${tasks[@]}" --kill-on-bad-exit=1 --overlap --cpu-bind=none \
  --open-mode=append \
  --container-image='nvcr.io#nvidia/tensorrt-llm/release:1.2.0' \
  --container-name="$TRTLLM_HPC_CONTAINER:no_exec" \
  --container-mounts="$TRTLLM_HPC_MOUNTS" \
  --no-container-mount-home \
  "${launcher[@]}" \
  bash "$run/scripts/rank.context.sh" || status=$?

# Remove shared memory and scratch folders that killed ranks could not remove.
timeout 30 srun --nodelist="$(nodes_from "$first" 1)" --nodes=1 --ntasks=1 --ntasks-per-node=1 --mpi=none --overlap \
  --open-mode=append --output="$run/logs/serve.out" \
  "$python" "$run/runtime.pyz" sweep "$TRTLLM_HPC_INSTANCE" || true
exit "$status"
