#!/usr/bin/env bash
# Run the commands of serve.prologue, then become the program in the arguments. Both run in one shell, so the server
# inherits exported variables and limits. Every rank runs this script, in the container if there is one.
# Rendered by trtllm-hpc 0.1.0.
set -eo pipefail
ended() {
  # Status 0: a signal has ended the shell, and no command has failed.
  [ "$1" -ne 0 ] || return 0
  echo "$at failed (exit code $1): $command" >"${TRTLLM_HPC_RANK_FAILURE:-/dev/null}"
  echo "error: $at failed (exit code $1): $command" >&2
}
trap 'ended "$?"' EXIT
# The ranks of a node run the commands one after the other, because two installations at once would write the same
# files. Without flock in the image, they run at once.
at="taking turns in serve.prologue" command=flock
exec {turn}>>"/tmp/trt${TRTLLM_HPC_JOB_ID}_prologue"
if type flock >/dev/null 2>&1; then flock "$turn"; fi

at='serve.prologue[0]' command='pip install '"'"'/shared/a b.whl'"'"''
pip install '/shared/a b.whl'

# Unlock explicitly: a background process of a command may keep the file open, and with it the lock.
if type flock >/dev/null 2>&1; then flock --unlock "$turn"; fi
exec {turn}>&-
at="starting the server after serve.prologue" command=$1
exec "$@"
