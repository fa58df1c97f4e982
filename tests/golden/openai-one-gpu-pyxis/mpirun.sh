#!/usr/bin/env bash
# The ranks of a step by Open MPI's own launcher, for a Slurm without PMIx: mpirun.sh STEP RANKS-OF-A-NODE COMMAND...
# srun starts this once on each node of the step, in the container if there is one: all of MPI is the container's.
# The first runs mpirun. What mpirun would start on the others by ssh, these have waited for.
# Rendered by trtllm-hpc 0.1.0.
set -euo pipefail
run='/scratch/ana/runs of june/17'
if [ "$1" = --rank ]; then
  # One of the ranks, under the names that Slurm's own tasks have.
  export SLURM_PROCID="$OMPI_COMM_WORLD_RANK" SLURM_LOCALID="$OMPI_COMM_WORLD_LOCAL_RANK"
  export SLURM_NTASKS="$OMPI_COMM_WORLD_SIZE"
  exec "${@:3}" >>"$run/logs/$2_$SLURM_PROCID.out" 2>&1
fi
step=$1
ranks=$2
shift 2
if ! command -v mpirun >/dev/null; then
  echo "error: there is no mpirun on $(hostname), which joins the ranks where srun does not (mpi: pmix in the profile)" >&2
  exit 7
fi

# Where the nodes meet; the first removes it.
export TRTLLM_HPC_MEETING="$run/mpirun.$SLURM_JOB_ID.$SLURM_STEP_ID"
host=$(hostname)
mkdir -p "$TRTLLM_HPC_MEETING"
echo "$host" >"$TRTLLM_HPC_MEETING/$SLURM_NODEID.new"
mv "$TRTLLM_HPC_MEETING/$SLURM_NODEID.new" "$TRTLLM_HPC_MEETING/$SLURM_NODEID"
# wait_for FILE: listing the folder makes an NFS client look again.
wait_for() {
  until [ -e "$TRTLLM_HPC_MEETING/$1" ]; do
    ls "$TRTLLM_HPC_MEETING" >/dev/null
    sleep 0.2
  done
}
# Slurm's SIGTERM at a job's end is for the ranks, which end in order. mpirun and its daemons would kill them.
without_sigterm() {
  exec python3 -c 'import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
os.execvp(sys.argv[1], sys.argv[1:])' "$@"
}
if [ "$SLURM_NODEID" -ne 0 ]; then
  wait_for "$host.command"
  without_sigterm bash -c "$(cat "$TRTLLM_HPC_MEETING/$host.command")"
fi

leave() { rm -rf "$TRTLLM_HPC_MEETING"; }
trap leave EXIT
# Slurm ends what is left of a task as soon as this process ends: a signal must not end it before the ranks.
trap : TERM INT HUP
hosts=
for ((node = 0; node < SLURM_STEP_NUM_NODES; node++)); do
  wait_for "$node"
  hosts+="${hosts:+,}$(cat "$TRTLLM_HPC_MEETING/$node"):$ranks"
done
# In place of ssh HOST COMMAND. mpirun splits this at spaces.
export TRTLLM_HPC_AGENT='echo "$*" >"$TRTLLM_HPC_MEETING/$0.new" && mv "$TRTLLM_HPC_MEETING/$0.new" "$TRTLLM_HPC_MEETING/$0.command"'
# Open MPI 5 calls the part that starts daemons ssh, and those before it rsh.
shell=ssh
case $(mpirun --version) in *"(Open MPI) "[1-4].*) shell=rsh ;; esac
# When a rank has failed, the others get SIGTERM and, a second later, SIGKILL.
(without_sigterm mpirun --mca ras ^slurm --mca plm "$shell" --mca "plm_${shell}_agent" 'bash -c eval${IFS}"$TRTLLM_HPC_AGENT"' \
  --mca "plm_${shell}_no_tree_spawn" 1 --leave-session-attached --allow-run-as-root \
  --host "$hosts" -n "$((SLURM_STEP_NUM_NODES * ranks))" --map-by slot --bind-to none \
  bash "$run/scripts/mpirun.sh" --rank "$step" "$@")
