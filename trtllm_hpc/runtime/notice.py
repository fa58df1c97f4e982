"""Notices to somebody's webhook: the server is ready or idle, a stage has failed, the run has ended."""

from __future__ import annotations

import json
import threading
import time

from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.records import of_last_job, read_events
from trtllm_hpc.runtime.renewal import Renewal

TIMEOUT_S = 10.0


def notify(paths: RunPaths, event: str, sentence: str, **facts: object) -> threading.Thread | None:
    """Send a notice (``ready``, ``idle``, ``failed``, ``ended``) in a thread; ``None`` without a webhook.

    A failure of the webhook is logged and harms nothing. Its URL may hold a secret and is not shown.
    """
    try:
        url = paths.notify.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    text = f"trtllm-hpc: run {paths.run_id}: {sentence}"
    notice = {"text": text, "run": paths.run_id, "folder": str(paths.folder), "event": event}
    body = json.dumps({**notice, "time": time.time(), **facts}).encode()
    sender = threading.Thread(target=_send, args=(url, body), name="notice", daemon=True)
    sender.start()
    return sender


def notify_end(paths: RunPaths, stage: str, exit_code: int) -> None:
    """Send a notice that a stage has failed, or that the server has ended and no job continues it."""
    if exit_code:
        events = of_last_job(read_events(paths, stage))
        reasons = [event.data["reason"] for event in events if "reason" in event.data]
        why = f": {reasons[-1]}" if reasons else ""
        event, sentence = "failed", f"stage {stage} has failed (exit code {exit_code}){why}"
    elif stage == "serve" and not _goes_on(paths):
        event, sentence = "ended", "the server has ended"
    else:
        return
    if sender := notify(paths, event, sentence, stage=stage, exit_code=exit_code):
        sender.join(TIMEOUT_S)  # the job ends after this


def _goes_on(paths: RunPaths) -> bool:
    renewal = Renewal.read(paths.renewal)
    return renewal is not None and renewal.next_job_id is not None


def _send(url: str, body: bytes) -> None:
    # Loading them takes as long as all else here, and few runs have a webhook.
    import urllib.request
    from http.client import HTTPException

    headers = {"Content-Type": "application/json"}
    try:
        request = urllib.request.Request(url, data=body, headers=headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            answer.read()
    except (OSError, ValueError, HTTPException) as error:
        why = getattr(error, "code", None) or getattr(error, "reason", None) or type(error).__name__
        print(f"The webhook of --notify was not reached: {why}", flush=True)
