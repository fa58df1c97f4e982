#!/usr/bin/env bash
# Start the ranks of a step by Open MPI's own launcher, for a Slurm without PMIx: mpirun.sh STEP RANKS-PER-NODE COMMAND...
# srun starts this script once on each node of the step, in the container if there is one, so MPI comes from the
# container. The first node runs mpirun. The other nodes wait for the commands that mpirun would run there by ssh.
# Rendered by trtllm-hpc 0.1.0.
set -euo pipefail
export run='/scratch/ana/runs of june/17'
if [ "$1" = --rank ]; then
  # One of the ranks: set the variables that tasks of Slurm have.
  export SLURM_PROCID="$OMPI_COMM_WORLD_RANK" SLURM_LOCALID="$OMPI_COMM_WORLD_LOCAL_RANK"
  export SLURM_NTASKS="$OMPI_COMM_WORLD_SIZE"
  exec "${@:3}" >>"$run/logs/$2_$SLURM_PROCID.out" 2>&1
fi
if [ "$1" = --agent ]; then
  # mpirun starts this in place of ssh, as --agent HOST COMMAND...: pass the command to the node of that name, which
  # waits for it. Open MPI may cut a host name at its first dot, so compare whole names first, then cut ones.
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

# The nodes exchange files in this folder; the first node removes it.
export TRTLLM_HPC_MEETING="$run/mpirun.$SLURM_JOB_ID.$SLURM_STEP_ID"
host=$(hostname)
mkdir -p "$TRTLLM_HPC_MEETING"
echo "$host" >"$TRTLLM_HPC_MEETING/$SLURM_NODEID.new"
mv "$TRTLLM_HPC_MEETING/$SLURM_NODEID.new" "$TRTLLM_HPC_MEETING/$SLURM_NODEID.host"
# wait_for FILE WHAT: wait until FILE exists. Listing the folder makes an NFS client refresh it. The limit leaves time
# to import an image.
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
# Block Slurm's SIGTERM at a job's end for mpirun and its daemons, which would kill the ranks. The ranks get the signal
# themselves, and end in an orderly way.
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
# Survive signals: Slurm kills the rest of a task once this process ends, so it must not end before the ranks.
trap : TERM INT HUP
hosts=
for ((node = 0; node < SLURM_STEP_NUM_NODES; node++)); do
  wait_for "$node.host" "node $node of the step to start"
  hosts+="${hosts:+,}$(cat "$TRTLLM_HPC_MEETING/$node.host"):$ranks"
done
# The agent is called like ssh, as HOST COMMAND. It is in a variable because mpirun splits its option at spaces.
export TRTLLM_HPC_AGENT='exec bash "$run/scripts/mpirun.sh" --agent "$0" "$@"'
# The component that starts daemons is called ssh in Open MPI 5, and rsh before. Whole host names distinguish nodes
# with the same short name in different domains.
shell=ssh
whole=(--prtemca prte_keep_fqdn_hostnames 1)
case $(mpirun --version) in *"(Open MPI) "[1-4].*) shell=rsh whole=(--mca orte_keep_fqdn_hostnames 1) ;; esac
# When a rank has failed, the others get SIGTERM and, a second later, SIGKILL.
(without_sigterm mpirun --mca ras ^slurm --mca plm "$shell" --mca "plm_${shell}_agent" 'bash -c eval${IFS}"$TRTLLM_HPC_AGENT"' \
  --mca "plm_${shell}_no_tree_spawn" 1 --leave-session-attached --allow-run-as-root "${whole[@]}" \
  --host "$hosts" -n "$((SLURM_STEP_NUM_NODES * ranks))" --map-by slot --bind-to none \
  bash "$run/scripts/mpirun.sh" --rank "$step" "$@")
