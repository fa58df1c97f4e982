"""Serve a model on this machine, ask it, measure it, and draw what was measured.

    pip install 'trtllm-hpc[reference,notebook]'
    python serve_and_measure.py

On a cluster, name its profile instead of ``local``. The notebook beside this file tells the same story
step by step.
"""

import matplotlib

matplotlib.use("Agg")  # draws into a file, without a window

import matplotlib.pyplot as plt

import trtllm_hpc

settings = ["companion.enabled=false"]  # this script asks and measures itself

# The end of the block cancels the run, whatever happens in it.
with trtllm_hpc.submit("tiny-llama", "local", settings) as run:
    run.wait("ready", progress=True)
    with run.client() as client:
        print(client.generate("What is machine learning?", max_tokens=16).text)
    measurement = trtllm_hpc.bench(run, rate_per_second=[4, 8])

print(measurement)
print(measurement.to_pandas("levels")[["level", "finished_rate_per_s", "ttft_ms.p99", "latency_ms.p50"]])

requests = measurement.to_pandas()
figure, axes = plt.subplots()
for level, group in requests[requests.phase == "measured"].groupby("level"):
    axes.plot(group.scheduled_s, group.latency_ms, "o", label=level)
axes.set(xlabel="time of the request (s)", ylabel="latency (ms)")
axes.legend(title="load")
chart = run.folder / "latency.png"
figure.savefig(chart)
print(f"chart: {chart}")
