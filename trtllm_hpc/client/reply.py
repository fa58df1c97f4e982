"""The responses to one request, put together to answers. Nothing here knows how they travel."""

from __future__ import annotations

import codecs
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trtllm_hpc.client.request import Answer, Counted, Request
from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.wire.response import Part, Response, Usage
from trtllm_hpc.wire.served_model import IDS_OUTPUT, TEXT_OUTPUT, ServedModel

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass
class Text:
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


class Reply:
    """The responses to one request of a model.

    ``responses`` is the number of those with output, ``new`` what the last one added to the first text.
    """

    def __init__(self, model: ServedModel, request: Request, protocol: str) -> None:
        self._model, self._request, self._protocol = model, request, protocol
        self._repeats = model.accumulates and request.stream
        self._texts: dict[tuple[int, int, int], Text] = {}
        """By the indices of prompt, sequence and beam."""
        self._logits: dict[int, dict[str, NDArray[Any]]] = {}
        self._usage: Usage | None = None
        self._started = time.monotonic()
        self._first_text_s: float | None = None
        self.responses = 0
        self.new = ""

    @property
    def first(self) -> Text | None:
        """The first text; ``None`` before it has begun."""
        return self._texts.get((0, 0, 0))

    def add(self, response: Response) -> None:
        """Take in a response."""
        for prompt, logits in response.logits.items():
            self._logits.setdefault(prompt, {}).update(logits)
        for part in response.parts:
            key = (part.prompt_index, part.sequence_index, part.beam_index)
            text = self._texts.setdefault(key, Text())
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
        self.new = ends.get((0, 0, 0), "")

    def answers(self, *, is_stopped: bool) -> tuple[Answer, ...]:
        """Return the answer to each prompt. Raises RequestFailed if one has none, or logits are missing."""
        latency_s = time.monotonic() - self._started
        return tuple(
            self._answer(prompt, latency_s, is_stopped) for prompt in range(len(self._request.prompts))
        )

    def _answer(self, prompt: int, latency_s: float, is_stopped: bool) -> Answer:
        texts = [self._texts[key] for key in sorted(self._texts) if key[0] == prompt]
        logits = self._logits.get(prompt, {})
        if not is_stopped:
            self._refuse_missing(prompt, texts, logits)
        takes_text = self._model.takes_text
        tokens, counted_by = self._counted(texts)
        asks_log_probs = self._request.options.get("log_probs")
        return Answer(
            protocol=self._protocol,
            text=texts[0].text if texts and takes_text else "",
            latency_s=latency_s,
            output_tokens=tokens,
            counted_by=counted_by,
            texts=tuple(text.text for text in texts) if takes_text else (),
            token_ids=() if takes_text else tuple(tuple(text.ids) for text in texts),
            first_text_s=self._first_text_s,
            is_stopped=is_stopped,
            log_probs=tuple(texts[0].log_probs if texts else ()) if asks_log_probs else None,
            responses=self.responses,
            logits=logits,
            request_id=self._request.request_id,
        )

    def _counted(self, texts: Sequence[Text]) -> tuple[int | None, Counted | None]:
        if texts and texts[0].tokens is not None:
            return texts[0].tokens, "server"
        # The tokens of several texts are only known together.
        if self._usage is not None and len(self._texts) == 1 and self._usage.output_tokens is not None:
            return self._usage.output_tokens, "server"
        if texts and texts[0].log_probs and self._request.options.get("log_probs"):
            return len(texts[0].log_probs), "server"
        if self._request.stream and self.responses:
            return self.responses, "responses"
        return None, None

    def _refuse_missing(self, prompt: int, texts: Sequence[Text], logits: Mapping[str, Any]) -> None:
        missing = [] if texts else [TEXT_OUTPUT if self._model.takes_text else IDS_OUTPUT]
        missing += [name for name in self._request.logits if name not in logits]
        if not missing:
            return
        which = f" to prompt {prompt + 1}" if len(self._request.prompts) > 1 else ""
        what = "without a text"
        if self._protocol != "openai":
            over = {"grpc": "gRPC", "http": "HTTP"}[self._protocol]
            what = f"over {over} without a {missing[0]!r} output"
        raise RequestFailed(f"Model {self._model.name!r} answered{which} {what}.")
