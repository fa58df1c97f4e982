"""What a server sends for one request, put together to answers. Nothing here knows how it travels."""

from __future__ import annotations

import codecs
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trtllm_hpc.client.early_end import Course
from trtllm_hpc.client.request import Answer, Counted, Request
from trtllm_hpc.client.served_model import LENGTH_OUTPUT, TEXT_OUTPUT, ServedModel
from trtllm_hpc.errors import RequestFailed

if TYPE_CHECKING:
    from numpy.typing import NDArray

Outputs = Mapping[str, "NDArray[Any]"]
"""The tensors of one response by name; texts as ``bytes`` or ``str``."""

OnText = Callable[[str], object]

IDS_OUTPUT = "output_ids"
_LOG_PROBS = "output_log_probs"

_FIRST = (0, 0, 0)
"""Prompt, sequence and beam of the text that is shown as it comes."""


@dataclass(frozen=True)
class Beam:
    """The tokens of one beam of an answer; the only one unless the request is a beam search."""

    ids: Sequence[int]
    log_probs: Sequence[float]
    """Of each token, if asked for."""


def _decoder() -> codecs.IncrementalDecoder:
    # A letter of several bytes may arrive in two responses.
    return codecs.getincrementaldecoder("utf-8")(errors="replace")


@dataclass
class _Text:
    """One text of an answer, as far as it has come."""

    text: str = ""
    told: int = 0
    """Letters that :meth:`new` has returned."""
    ids: list[int] = field(default_factory=list)
    tokens: int | None = None
    log_probs: tuple[float, ...] = ()
    decoder: codecs.IncrementalDecoder = field(default_factory=_decoder)

    def add(self, value: bytes | str, *, repeats: bool) -> None:
        """Take in what has come; with ``repeats`` it begins with what was there before."""
        if repeats:
            self.text = value if isinstance(value, str) else value.decode("utf-8", errors="replace")
        else:
            self.text += value if isinstance(value, str) else self.decoder.decode(value)

    def end(self) -> None:
        """Take what is left of a broken letter."""
        self.text += self.decoder.decode(b"", True)

    def new(self, *, repeats: bool) -> str:
        """Return what has come since the last call; a letter that may yet become another one is held back."""
        end = len(self.text.rstrip("\N{REPLACEMENT CHARACTER}")) if repeats else len(self.text)
        text = self.text[self.told : end]
        self.told = max(self.told, end)
        return text


class Reply:
    """The responses to one request of a model."""

    def __init__(self, model: ServedModel, request: Request, protocol: str) -> None:
        self._model = model
        self._request = request
        self._protocol = protocol
        self._repeats = model.accumulates and request.stream
        self._texts: dict[tuple[int, int, int], _Text] = {}
        self._logits: dict[int, dict[str, NDArray[Any]]] = {}
        self.responses = 0
        self.started = time.monotonic()

    async def answers(
        self, responses: AsyncGenerator[Outputs], course: Course, on_text: OnText | None
    ) -> tuple[Answer, ...]:
        """Take in all responses, pass on the first text as it comes, and return the answer to each prompt.

        Raises RequestFailed if there is no answer to a prompt, or logits are missing.
        """
        first_s: float | None = None
        async with aclosing(responses):
            async for outputs in responses:
                new = self.add(outputs)
                if self._request.stream and first_s is None and self.responses:
                    first_s = time.monotonic() - self.started
                if new and on_text is not None:
                    on_text(new)
        if (rest := self._rest()) and on_text is not None:
            on_text(rest)
        latency_s, prompts = time.monotonic() - self.started, range(len(self._request.prompts))
        return tuple(self._answer(prompt, latency_s, first_s, course.is_stopped) for prompt in prompts)

    def add(self, outputs: Outputs) -> str:
        """Take in a response, and return what is new in the first text.

        Raises RequestFailed if its tensors are not those of such a model.
        """
        is_counted = False
        for prompt, row in self._rows(outputs):
            sequence = self._index(row, "sequence_index")
            for name in self._request.logits:
                if name in row:
                    self._logits.setdefault(prompt, {})[name] = row[name]
            values = self._values(row)
            for beam, value in enumerate(values):
                text = self._texts.setdefault((prompt, sequence, beam), _Text())
                if isinstance(value, list):
                    text.ids.extend(value)
                else:
                    text.add(value, repeats=self._repeats)
                self._count(text, row, beam, by_ids=isinstance(value, list))
            is_counted = is_counted or bool(values)
        self.responses += is_counted
        first = self._texts.get(_FIRST)
        return first.new(repeats=self._repeats) if first is not None else ""

    @property
    def beams(self) -> list[Beam]:
        """The first prompt's first sequence as far as it has come, of a model that answers with ids."""
        found = sorted(key for key in self._texts if key[:2] == _FIRST[:2])
        return [Beam(self._texts[key].ids, self._texts[key].log_probs) for key in found]

    def _rest(self) -> str:
        """Return what was held back of the first text, after the last response."""
        for text in self._texts.values():
            text.end()
        first = self._texts.get(_FIRST)
        return first.new(repeats=False) if first is not None else ""

    def _answer(self, prompt: int, latency_s: float, first_text_s: float | None, is_stopped: bool) -> Answer:
        keys = sorted(key for key in self._texts if key[0] == prompt)
        if not keys and not is_stopped:
            raise RequestFailed(self._missing(prompt, TEXT_OUTPUT if self._model.takes_text else IDS_OUTPUT))
        found = [self._texts[key] for key in keys]
        logits = self._logits.get(prompt, {})
        for name in () if is_stopped else self._request.logits:
            if name not in logits:
                raise RequestFailed(self._missing(prompt, name))
        texts = tuple(text.text for text in found) if self._model.takes_text else ()
        tokens, counted_by = self._counted(found)
        asks_log_probs = self._request.options.get("log_probs")
        return Answer(
            protocol=self._protocol,
            text=texts[0] if texts else "",
            latency_s=latency_s,
            output_tokens=tokens,
            counted_by=counted_by,
            texts=texts,
            token_ids=() if self._model.takes_text else tuple(tuple(text.ids) for text in found),
            first_text_s=first_text_s,
            is_stopped=is_stopped,
            log_probs=(found[0].log_probs if found else ()) if asks_log_probs else None,
            responses=self.responses,
            logits=logits,
            request_id=self._request.request_id,
        )

    def _counted(self, texts: Sequence[_Text]) -> tuple[int | None, Counted | None]:
        if texts and (tokens := texts[0].tokens) is not None:
            return tokens, "server"
        if self._request.stream and self.responses:
            return self.responses, "responses"
        return None, None

    def _missing(self, prompt: int, output: str) -> str:
        which = f" to prompt {prompt + 1}" if len(self._request.prompts) > 1 else ""
        protocol = _PROTOCOLS.get(self._protocol, self._protocol)
        return f"Model {self._model.name!r} answered{which} over {protocol} without a {output!r} output."

    def _rows(self, outputs: Outputs) -> Iterator[tuple[int, Outputs]]:
        """Split a response by prompts: usually it is about one, which ``batch_index`` names."""
        count = len(self._request.prompts)
        first = outputs.get(TEXT_OUTPUT if self._model.takes_text else IDS_OUTPUT)
        is_batch = first is not None and first.ndim > 1 and first.shape[0] == count
        if count == 1 or "batch_index" in outputs or not is_batch:
            yield self._index(outputs, "batch_index", below=count), outputs
            return
        for row in range(count):
            yield row, {name: array[row : row + 1] for name, array in outputs.items() if len(array) == count}

    def _index(self, outputs: Outputs, name: str, below: int | None = None) -> int:
        array = outputs.get(name)
        if array is None or not array.size:
            return 0
        value = array.reshape(-1)[0]
        if array.dtype.kind not in "iu" or value < 0 or (below is not None and value >= below):
            raise self._wrong(name, f"{value!r}")
        return int(value)

    def _values(self, row: Outputs) -> list[bytes | str | list[int]]:
        """Return what a response holds of each beam: texts, or ids."""
        array = row.get(TEXT_OUTPUT if self._model.takes_text else IDS_OUTPUT)
        if array is None or not array.size:
            return []
        if self._model.takes_text:
            values: list[bytes | str | list[int]] = array.reshape(-1).tolist()
            if not all(isinstance(value, (bytes, str)) for value in values):
                raise self._wrong(TEXT_OUTPUT, f"{array.dtype} of shape {list(array.shape)}")
            return values
        if array.dtype.kind not in "iu":
            raise self._wrong(IDS_OUTPUT, f"{array.dtype} of shape {list(array.shape)}")
        beams = array.reshape(-1, array.shape[-1])
        lengths = row.get(LENGTH_OUTPUT)
        if lengths is None:
            return [beam.tolist() for beam in beams]
        if lengths.size != len(beams) or lengths.dtype.kind not in "iu":
            raise self._wrong(LENGTH_OUTPUT, f"{lengths.dtype} of shape {list(lengths.shape)}")
        return [beam[:length].tolist() for beam, length in zip(beams, lengths.reshape(-1), strict=True)]

    def _count(self, text: _Text, row: Outputs, beam: int, *, by_ids: bool) -> None:
        probabilities = row.get(_LOG_PROBS)
        if probabilities is not None and probabilities.ndim and probabilities.shape[-1]:
            beams = probabilities.reshape(-1, probabilities.shape[-1])
            if beam < len(beams):
                # Each response has those of all tokens so far.
                text.log_probs = tuple(float(value) for value in beams[beam])
        if by_ids:
            text.tokens = len(text.ids)
            return
        lengths = row.get(LENGTH_OUTPUT)
        if lengths is not None and beam < lengths.size and lengths.dtype.kind in "iu":
            text.tokens = int(lengths.reshape(-1)[beam])
        elif text.log_probs and self._request.options.get("log_probs"):
            text.tokens = len(text.log_probs)

    def _wrong(self, output: str, what: str) -> RequestFailed:
        return RequestFailed(f"Model {self._model.name!r} answered with a wrong output {output!r}: {what}.")


_PROTOCOLS = {"grpc": "gRPC", "http": "HTTP"}
