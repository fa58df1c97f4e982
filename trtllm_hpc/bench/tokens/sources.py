"""Who may have counted tokens, in the words of the records."""

from __future__ import annotations

BY_MODEL = "model"
"""The asked model itself: its ``sequence_length``, or the ids that it answered with."""
BY_WORKLOAD = "workload"
"""The workload sent ids, so many."""
BY_RESPONSES = "responses"
"""Each response of a stream is taken for one token."""
BY_TOKENIZER = "tokenizer"
"""The model's tokenizer, run over the text on the client's side. An answer's tokens may have been others."""
BY_PREPROCESSING = "preprocessing"
"""The server's tokenizer, asked over the network."""
BY_REQUEST = "requested"
"""Nobody counted: the number that was asked for. Too high if the model stopped earlier."""
