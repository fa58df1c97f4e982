#!/usr/bin/env bash
# The commands of serve.prologue, and then the program of the arguments, in one shell: what the commands export, and
# the limits that they set, are the server's. Every rank runs this, in the container if there is one.
# Rendered by trtllm-hpc 0.1.0.
set -eo pipefail
ended() {
  # A signal ends the shell with status 0, since no command has failed.
  [ "$1" -ne 0 ] || return 0
  echo "$at failed (exit code $1): $command" >"${TRTLLM_HPC_RANK_FAILURE:-/dev/null}"
  echo "error: $at failed (exit code $1): $command" >&2
}
trap 'ended "$?"' EXIT
# The ranks of a node take turns, since two installations at once would write the same files. An image may lack flock.
at="taking turns in serve.prologue" command=flock
exec {turn}>>"/tmp/trt${TRTLLM_HPC_JOB_ID}_prologue"
if type flock >/dev/null 2>&1; then flock "$turn"; fi

at='serve.prologue[0]' command='pip install '"'"'/shared/a b.whl'"'"''
pip install '/shared/a b.whl'

# A process that a command has left behind may still have the file open.
if type flock >/dev/null 2>&1; then flock --unlock "$turn"; fi
exec {turn}>&-
at="starting the server after serve.prologue" command=$1
exec "$@"
