"""Serve a model on this machine, send it prompts, measure it, and plot the latencies.

    pip install './trtllm_hpc-0.1.0-py3-none-any.whl[reference,notebook]'
    python serve_and_measure.py

On a cluster, name its profile instead of ``local``. The notebook beside this file explains each step.
"""

import matplotlib

matplotlib.use("Agg")  # writes a file and opens no window

import matplotlib.pyplot as plt

import trtllm_hpc

settings = ["companion.enabled=false"]  # this script sends the requests itself

# The end of the block cancels the run, also after an error.
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
