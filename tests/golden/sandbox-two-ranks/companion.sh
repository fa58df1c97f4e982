#!/usr/bin/env bash
# The companion: waits for the endpoint, sends a request, measures, and stops the server.
# Rendered by trtllm-hpc 0.1.0. The exit code is that of the command that failed.
set -euo pipefail
run='/scratch/ana/runs of june/17'
python=/opt/trtllm-hpc/bin/python3
runtime() { "$python" "$run/runtime.pyz" "$@"; }

finish() {
  code=$?
  # Ignore errors, so that on a full disk each command is tried even if the other fails.
  runtime stop --by=companion --reason="it is done (exit code $code)" || true
  runtime end companion "$code" || true
}
trap finish EXIT
# A signal must end the script through the trap above, not around it.
trap 'exit 143' TERM INT HUP
cd "$run"
export PYTHONSAFEPATH=1

runtime begin companion

# The server stops by itself once this heartbeat is silent, whatever killed the companion.
# The loop restarts a heartbeat that was killed alone.
while kill -0 $$ 2>/dev/null && ! runtime heartbeat --while-pid=$$; do sleep 1; done &

# The prompt goes through a pipe because all users of the node can see command lines.
printf '%s\n' 'What is machine learning?' |
  "$python" -m trtllm_hpc client "$run" --wait-seconds=2640 \
  --prompt=- --protocol=grpc --max-tokens=16 \
  --model=ensemble --save

# The settings are in spec.yaml, companion.benchmark; any option of "trtllm-hpc bench run" may be added here.
"$python" -m trtllm_hpc bench run "$run" --save-as=benchmark
