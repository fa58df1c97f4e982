#!/usr/bin/env bash
# The ranks of a step by Open MPI's own launcher, for a Slurm without PMIx: mpirun.sh STEP RANKS-OF-A-NODE COMMAND...
# srun starts this once on each node of the step, in the container if there is one: all of MPI is the container's.
# The first runs mpirun. What mpirun would start on the others by ssh, these have waited for.
# Rendered by trtllm-hpc 0.1.0.
set -euo pipefail
export run='/scratch/ana/runs of june/17'
if [ "$1" = --rank ]; then
  # One of the ranks, under the names that Slurm's own tasks have.
  export SLURM_PROCID="$OMPI_COMM_WORLD_RANK" SLURM_LOCALID="$OMPI_COMM_WORLD_LOCAL_RANK"
  export SLURM_NTASKS="$OMPI_COMM_WORLD_SIZE"
  exec "${@:3}" >>"$run/logs/$2_$SLURM_PROCID.out" 2>&1
fi
if [ "$1" = --agent ]; then
  # What mpirun starts in place of ssh: --agent HOST COMMAND... The node that has this name waits for the command.
  # Open MPI cuts a name at its first dot, unless orte_keep_fqdn_hostnames (prte_... in Open MPI 5) says otherwise.
  host=$2
  shift 2
  cd "$TRTLLM_HPC_MEETING"
  for cut in no yes; do
    for file in [1-9]*.host; do
      name=$(cat "$file")
      node=${file%.host}
      if [ "$cut" = yes ]; then name=${name%%.*}; fi
      if [ "$name" = "$host" ] && [ ! -e "$node.command" ]; then
        echo "$*" >"$node.new"
        mv "$node.new" "$node.command"
        exit
      fi
    done
  done
  echo "error: mpirun looks for the node $host, but the nodes are called $(cat [0-9]*.host | paste -sd' ')" >&2
  exit 7
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
mv "$TRTLLM_HPC_MEETING/$SLURM_NODEID.new" "$TRTLLM_HPC_MEETING/$SLURM_NODEID.host"
# wait_for FILE WHAT: listing the folder makes an NFS client look again. The bound leaves time to import an image.
bound=${TRTLLM_HPC_MEETING_SECONDS:-600}
wait_for() {
  until [ -e "$TRTLLM_HPC_MEETING/$1" ]; do
    if [ "$SECONDS" -ge "$bound" ]; then
      echo "error: $host (node $SLURM_NODEID of $SLURM_STEP_NUM_NODES) has waited $bound s for $2; type trtllm-hpc logs for what the other nodes say, or trtllm-hpc doctor --on-nodes" >&2
      exit 7
    fi
    ls "$TRTLLM_HPC_MEETING" >/dev/null
    sleep 0.2
  done
}
# Slurm's SIGTERM at a job's end is for the ranks, which end in order. mpirun and its daemons would kill them.
without_sigterm() {
  exec /opt/trtllm-hpc/bin/python3 -c 'import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
os.execvp(sys.argv[1], sys.argv[1:])' "$@"
}
if [ "$SLURM_NODEID" -ne 0 ]; then
  wait_for "$SLURM_NODEID.command" "mpirun's command from the first node"
  without_sigterm bash -c "$(cat "$TRTLLM_HPC_MEETING/$SLURM_NODEID.command")"
fi

leave() { rm -rf "$TRTLLM_HPC_MEETING"; }
trap leave EXIT
# Slurm ends what is left of a task as soon as this process ends: a signal must not end it before the ranks.
trap : TERM INT HUP
hosts=
for ((node = 0; node < SLURM_STEP_NUM_NODES; node++)); do
  wait_for "$node.host" "node $node of the step to start"
  hosts+="${hosts:+,}$(cat "$TRTLLM_HPC_MEETING/$node.host"):$ranks"
done
# In place of ssh HOST COMMAND. mpirun splits the agent at spaces.
export TRTLLM_HPC_AGENT='exec bash "$run/scripts/mpirun.sh" --agent "$0" "$@"'
# Open MPI 5 calls the part that starts daemons ssh, and those before it rsh. Whole names tell two nodes apart that have
# one short name in two domains.
shell=ssh
whole=(--prtemca prte_keep_fqdn_hostnames 1)
case $(mpirun --version) in *"(Open MPI) "[1-4].*) shell=rsh whole=(--mca orte_keep_fqdn_hostnames 1) ;; esac
# When a rank has failed, the others get SIGTERM and, a second later, SIGKILL.
(without_sigterm mpirun --mca ras ^slurm --mca plm "$shell" --mca "plm_${shell}_agent" 'bash -c eval${IFS}"$TRTLLM_HPC_AGENT"' \
  --mca "plm_${shell}_no_tree_spawn" 1 --leave-session-attached --allow-run-as-root "${whole[@]}" \
  --host "$hosts" -n "$((SLURM_STEP_NUM_NODES * ranks))" --map-by slot --bind-to none \
  bash "$run/scripts/mpirun.sh" --rank "$step" "$@")
