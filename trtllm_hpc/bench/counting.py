"""Who counts the tokens, from the best source to the last resort."""

from __future__ import annotations

from collections.abc import Sequence

from trtllm_hpc.bench.load.replies import Parsed, Reply
from trtllm_hpc.bench.records import RequestRecord
from trtllm_hpc.bench.summary import Window
from trtllm_hpc.bench.workload.request import Request
from trtllm_hpc.bench.workload.tokenizer import Tokenizer

BY_MODEL = "model"
"""The asked model itself: its ``sequence_length``, or the ids that it answered with."""
BY_WORKLOAD = "workload"
"""The workload sent ids, so many."""
BY_REPLAY = "replay"
"""The core model was asked the same prompt after the measurement (decoding is greedy by default)."""
BY_RESPONSES = "responses"
"""Each response of a stream is taken for one token."""
BY_TOKENIZER = "tokenizer"
"""The model's tokenizer, run over the text on the client's side. An answer's tokens may have been others."""
BY_PREPROCESSING = "preprocessing"
"""The server's tokenizer, asked over the network."""
BY_SHARING = "shared evenly"
"""Of chunks: nobody knows which has how many; the answer's tokens, as even as they go."""
BY_REQUEST = "requested"
"""Nobody counted: the number that was asked for. Too high if the model stopped earlier."""


def to_records(
    replies: Sequence[Reply],
    parsed: Sequence[Parsed],
    requests: Sequence[Request],
    *,
    level: int,
    repeat: int,
    window: Window,
    tokenizer: Tokenizer | None = None,
) -> list[RequestRecord]:
    """The records of one pass, in the order of the replies.

    Args:
        parsed: of each reply, see :func:`trtllm_hpc.bench.load.replies.parse`.
        requests: the workload; a reply's ``index`` is a place in it, modulo its length.
        window: the measured part; what was due before it is warm-up. Nothing is due after it.
        tokenizer: counts answers of which the model does not tell the length.
    """
    raise NotImplementedError
