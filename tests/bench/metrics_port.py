"""A server's metrics port, with pages made up by the test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from trtllm_hpc.runtime.records import Endpoint

MODEL = 'model="tensorrt_llm",version="1"'


def page(*, finished: int = 0, queue_us: int = 0, tokens: int = 0, used: int = 10) -> str:
    """A page as tensorrtllm_backend v0.16 has it."""
    blocks = "nv_trt_llm_kv_cache_block_metrics"
    return f"""# HELP nv_inference_request_success Number of successful inference requests
# TYPE nv_inference_request_success counter
nv_inference_request_success{{{MODEL}}} {finished}
# TYPE nv_inference_request_failure counter
nv_inference_request_failure{{{MODEL},reason="OTHER"}} 1
nv_inference_request_failure{{{MODEL},reason="REJECTED"}} 2
# TYPE nv_inference_queue_duration_us counter
nv_inference_queue_duration_us{{{MODEL}}} {queue_us}
# TYPE {blocks} gauge
{blocks}{{{MODEL},kv_cache_block_type="used"}} {used}
{blocks}{{{MODEL},kv_cache_block_type="max"}} 40
# TYPE nv_llm_output_token_len histogram
nv_llm_output_token_len_count{{{MODEL},response_metric_type="total_output_tokens"}} {finished}
nv_llm_output_token_len_sum{{{MODEL},response_metric_type="total_output_tokens"}} {tokens}
nv_llm_output_token_len_bucket{{{MODEL},response_metric_type="total_output_tokens",le="+Inf"}} {finished}
"""


@contextmanager
def serving(answer: Callable[[int], tuple[int, str]], *, ready: int = 200) -> Iterator[Endpoint]:
    """A server; ``answer`` gives status and page of the n-th look at its metrics."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet: two would wait 40 ms for the client's acknowledgement

        def do_GET(self) -> None:
            status, text = ready if self.path == "/v2/health/ready" else 404, ""
            if self.path.startswith("/metrics"):
                asked.append(self.path)
                status, text = answer(len(asked) - 1)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *words: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield endpoint_at(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()


def endpoint_at(port: int) -> Endpoint:
    return Endpoint("1", "node", "127.0.0.1", port, 2, port, [], 0.0)
