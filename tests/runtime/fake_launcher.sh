#!/usr/bin/env bash
# A stand-in for trtllm-llmapi-launch, with its manners: the task is taken apart at spaces and loses
# SLURM_* and MPI's variables; no signal is passed on; and a task that fails does not end the workers.
set -e
task="$*"
rank=${SLURM_PROCID:-0}
over=$FAKE_LAUNCH_OVER
if [ "$rank" -eq 0 ]; then
  (
    while read -r name; do
      case "$name" in SLURM_* | PMIX_* | OMPI_*) unset "$name" ;; esac
    done < <(compgen -e)
    $task
    touch "$over"
  ) &
fi
while [ ! -e "$over" ]; do sleep 0.05; done
