#!/usr/bin/env bash
# The companion: waits for the endpoint, asks, measures, and stops the server.
# Rendered by trtllm-hpc 0.1.0. Its exit code is that of the command that failed.
set -euo pipefail
run='/scratch/ana/runs of june/17'
python=/opt/trtllm-hpc/bin/python3
runtime() { "$python" "$run/runtime.pyz" "$@"; }

finish() {
  code=$?
  # Each line for itself: on a full disk the one that fails must not keep the other from trying.
  runtime stop --by=companion --reason="it is done (exit code $code)" || true
  runtime end companion "$code" || true
}
trap finish EXIT
# A signal must end the script through the trap above, not around it.
trap 'exit 143' TERM INT HUP
cd "$run"
export PYTHONSAFEPATH=1

runtime begin companion

# The server stops by itself if this falls silent, whatever killed the companion.
# If only the heartbeat is killed, it begins again.
while kill -0 $$ 2>/dev/null && ! runtime heartbeat --while-pid=$$; do sleep 1; done &

# Not as an option: everybody on the node sees command lines.
printf '%s\n' 'What is machine learning?' |
  "$python" -m trtllm_hpc client "$run" --wait-seconds=2640 \
  --prompt=- --protocol=openai --max-tokens=16 --save

# Its settings stand in spec.yaml, companion.benchmark; any option of "trtllm-hpc bench" may be added here.
"$python" -m trtllm_hpc bench run "$run" --save-as=benchmark
