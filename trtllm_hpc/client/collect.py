"""The responses to one request, put together to an answer. Nothing here knows how they travel."""

from __future__ import annotations

import codecs
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from trtllm_hpc.client.request import Answer, Counted, Request
from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.wire.response import Part, Response, Usage
from trtllm_hpc.wire.served_model import ServedModel


@dataclass
class CollectedText:
    """One text of an answer, or its token ids, as far as it has come."""

    text: str = ""
    shown: int = 0
    """Letters that :meth:`new` has returned."""
    ids: list[int] = field(default_factory=list)
    tokens: int | None = None
    """As the server counts them."""
    log_probs: list[float] = field(default_factory=list)
    """Of each token, if asked for."""
    decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")(errors="replace")
    )
    """A letter of several bytes may arrive in two responses."""

    def add(self, part: Part, *, repeats: bool) -> None:
        """Take in what has come; with ``repeats`` its text begins with the text before."""
        value = part.text or ""
        if repeats:
            self.text = value if isinstance(value, str) else value.decode("utf-8", errors="replace")
        else:
            self.text += value if isinstance(value, str) else self.decoder.decode(value)
        if part.ids is not None:
            self.ids.extend(part.ids)
            self.tokens = len(self.ids)
        elif part.length is not None:
            self.tokens = part.length

    def new(self, *, repeats: bool, is_end: bool = False) -> str:
        """Return what has come since the last call; a letter that may yet become another one is held back."""
        self.text += self.decoder.decode(b"", is_end)
        is_certain = is_end or not repeats
        end = len(self.text if is_certain else self.text.rstrip("\N{REPLACEMENT CHARACTER}"))
        text = self.text[self.shown : end]
        self.shown = max(self.shown, end)
        return text


class Collector:
    """The responses to one request of a model.

    ``responses`` is the number of those with output, ``new`` what the last one added to the first text.
    """

    def __init__(self, model: ServedModel, request: Request, protocol: str) -> None:
        self._model, self._request, self._protocol = model, request, protocol
        self._repeats = model.accumulates and request.stream
        self._texts: dict[tuple[int, int], CollectedText] = {}
        """By the indices of sequence and beam."""
        self._usage: Usage | None = None
        self._started = time.monotonic()
        self._first_text_s: float | None = None
        self.responses = 0
        self.new = ""

    @property
    def first(self) -> CollectedText | None:
        """The first text; ``None`` before it has begun."""
        return self._texts.get((0, 0))

    def add(self, response: Response) -> None:
        """Take in a response."""
        for part in response.parts:
            text = self._texts.setdefault(part.place, CollectedText())
            text.add(part, repeats=self._repeats)
            if part.log_probs:
                # Triton repeats those of the tokens before.
                before = text.log_probs if self._protocol == "openai" else []
                text.log_probs = [*before, *part.log_probs]
        self._usage = response.usage or self._usage
        self.responses += bool(response.parts)
        if self._request.stream and self._first_text_s is None and self.responses:
            self._first_text_s = time.monotonic() - self._started
        self.new = "" if self.first is None else self.first.new(repeats=self._repeats)

    def end(self) -> None:
        """Put what was held back of the first text into ``new``, after the last response."""
        ends = {key: text.new(repeats=self._repeats, is_end=True) for key, text in self._texts.items()}
        self.new = ends.get((0, 0), "")

    def answer(self, *, is_stopped: bool) -> Answer:
        """Return the answer. Raises RequestFailed if there is none, unless the request was ended early."""
        texts = [self._texts[key] for key in sorted(self._texts)]
        takes_text = self._model.takes_text
        if not (texts or is_stopped):
            what = "a text" if takes_text else "token ids"
            raise RequestFailed(f"Model {self._model.name!r} answered without {what}.")
        tokens, counted_by = self._counted(texts)
        asks_log_probs = self._request.options.get("log_probs")
        return Answer(
            protocol=self._protocol,
            text=texts[0].text if texts else "",
            latency_s=time.monotonic() - self._started,
            output_tokens=tokens,
            counted_by=counted_by,
            texts=tuple(text.text for text in texts) if takes_text else (),
            token_ids=() if takes_text else tuple(tuple(text.ids) for text in texts),
            first_text_s=self._first_text_s,
            is_stopped=is_stopped,
            log_probs=tuple(texts[0].log_probs if texts else ()) if asks_log_probs else None,
            responses=self.responses,
            request_id=self._request.request_id,
        )

    def _counted(self, texts: Sequence[CollectedText]) -> tuple[int | None, Counted | None]:
        if texts and texts[0].tokens is not None:
            return texts[0].tokens, "server"
        # The tokens of several texts are only known together.
        if self._usage is not None and len(texts) == 1 and self._usage.output_tokens is not None:
            return self._usage.output_tokens, "server"
        if texts and texts[0].log_probs and self._request.options.get("log_probs"):
            return len(texts[0].log_probs), "server"
        return (self.responses, "responses") if self._request.stream and self.responses else (None, None)
