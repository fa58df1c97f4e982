#!/usr/bin/env bash
# One server of a disaggregated run. The supervisor starts this with the server's number.
# Rendered by trtllm-hpc 0.1.0.
set -euo pipefail
case "$1" in
  0 | 1) role=context ;;
  2) role=generation ;;
  *)
    echo "error: there is no server $1" >&2
    exit 7
    ;;
esac
exec bash '/scratch/ana/runs of june/17'/scripts/"instance.$role.sh" "$1"
