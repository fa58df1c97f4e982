"""Whether the energy that a rank adds up is that of NVML's own counter, and what reading it costs.

``python -m benchmarks.energy [--seconds 60] [--gpu 0]`` reads a GPU as the supervisor of a rank does, while a
process beside it multiplies matrices with torch for two seconds and rests for one, again and again. It prints
energy and power by the readings and by the counter, and the CPU time of the reading thread.

Bounds: 2 % between readings and counter, and 0.5 % of a core. The exit code is 1 when one is broken.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from trtllm_hpc.runtime.gpus import GpuWatch, Nvml, read_seconds

MOST_DIFFERENCE, MOST_CPU_SHARE = 0.02, 0.005
LOAD = """
import time, torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
while True:
    begun = time.monotonic()
    while time.monotonic() - begun < 2:
        for _ in range(20):
            b = a @ a
        torch.cuda.synchronize()
    time.sleep(1)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--gpu", default="0", help="its number or UUID")
    options = parser.parse_args()
    nvml = Nvml.opened()
    gpus = nvml.gpus([options.gpu]) if nvml is not None else []
    if not gpus:
        sys.exit(f"NVML has no GPU {options.gpu} here.")
    load = subprocess.Popen([sys.executable, "-c", LOAD])
    try:
        time.sleep(10)  # until torch computes
        return measure(options.gpu, options.seconds)
    finally:
        load.kill()


def measure(gpu: str, seconds: int) -> int:
    """Read a GPU for a while, and compare; returns the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "gpus.jsonl"
        watch, begun, cpu_s = GpuWatch([gpu], file), time.monotonic(), time.process_time()
        watch.begin()
        time.sleep(seconds)
        watch.end()
        cpu_s = time.process_time() - cpu_s  # this process does nothing else
        passed_s, lines = time.monotonic() - begun, list(read_seconds(file.read_bytes()))
    first, last = lines[0], lines[-1]
    read_j, read_s = last["total_j"] - first["total_j"], last["total_s"] - first["total_s"]
    share, mean_w = cpu_s / passed_s, read_j / read_s
    print(f"{len(lines)} lines in {passed_s:.1f} s, {len(str(last))} characters the last one")
    print(f"read: {read_j:,.0f} J in {read_s:.2f} s, mean {mean_w:.1f} W, peak {last['total_peak_w']:.1f} W")
    print(f"CPU time of the thread: {cpu_s:.3f} s, {share:.3%} of a core (at most {MOST_CPU_SHARE:.1%})")
    print("throttled:", sorted({reason for it in lines for reason in it.get("throttled") or ()}))
    if last["counter_j"] is None:
        print("the GPU has no counter of energy")
        return int(share > MOST_CPU_SHARE)
    counter_j = last["counter_j"] - first["counter_j"]
    quotient = read_j / counter_j
    print(f"counter: {counter_j:,.0f} J; read / counter: {quotient:.4f} (within {MOST_DIFFERENCE:.0%})")
    return int(share > MOST_CPU_SHARE or abs(quotient - 1) > MOST_DIFFERENCE)


if __name__ == "__main__":
    sys.exit(main())
