"""Bad and stop words of the running requests, compared on the device with the ends of their sequences.

A bad or stop word may begin in the prompt, as in TensorRT-LLM (as of 2024,
``kernels/banBadWords.cu``, ``kernels/stopCriteriaKernels.cu``).
"""

from __future__ import annotations

import torch

from trtllm_hpc.reference.generation import Words

LOWEST = torch.finfo(torch.float32).min
"""The score of a token that must not be chosen; finite, so that no difference of scores is NaN."""

_ANY = -1
"""Padding before a word; equals every token."""
_NONE = -2
"""Padding before a prompt; equals no token."""


def to_device(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy to the device without waiting for it."""
    if device.type == "cuda":
        values = values.pin_memory()
    return values.to(device, non_blocking=True)


class WordTable:
    """Words of each slot, [slots, words, tokens], aligned to the right.

    It grows when needed, and shrinks when no slot has words any more.
    """

    def __init__(self, slots: int, device: torch.device) -> None:
        self._table = torch.full((slots, 1, 1), _ANY, dtype=torch.int64, device=device)
        self._slots_with_words: set[int] = set()

    @property
    def length(self) -> int:
        """Number of tokens of the longest word that fits."""
        return self._table.shape[2]

    def put(self, slot: int, words: Words) -> None:
        """Replace the words of a slot; no word may be empty."""
        if not words:
            self.clear(slot)
            return
        self._slots_with_words.add(slot)
        self._grow(len(words), max(map(len, words)))
        _, places, length = self._table.shape
        rows = [(_ANY,) * (length - len(word)) + word for word in words]
        rows += [(_ANY,) * length] * (places - len(rows))
        self._table[slot] = to_device(torch.tensor(rows), self._table.device)

    def clear(self, slot: int) -> None:
        """Remove all words of a slot."""
        self._table[slot] = _ANY
        self._slots_with_words.discard(slot)
        if not self._slots_with_words:
            self._table = self._table.new_full((self._table.shape[0], 1, 1), _ANY)

    def complete(self, slots: torch.Tensor, tails: torch.Tensor) -> torch.Tensor:
        """Whether each row's sequence ends in a word; ``tails`` [rows, tokens] are the last tokens."""
        words = self._table[slots]
        return (_equal(words, tails) & (words[:, :, -1] != _ANY)).any(dim=1)

    def banned(self, slots: torch.Tensor, tails: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Last token of each row's words, [rows, words], and whether the sequence has all before it."""
        words = self._table[slots]
        last = words[:, :, -1]
        return last.clamp(min=0), _equal(words[:, :, :-1], tails) & (last != _ANY)

    def _grow(self, places: int, length: int) -> None:
        slots, old_places, old_length = self._table.shape
        if places <= old_places and length <= old_length:
            return
        shape = (slots, max(old_places, _power_of_two(places)), max(old_length, _power_of_two(length)))
        grown = self._table.new_full(shape, _ANY)
        grown[:, :old_places, shape[2] - old_length :] = self._table
        self._table = grown


class WordMatcher:
    """Bad and stop words of all slots, with the last tokens of each slot's sequence."""

    def __init__(self, slots: int, device: torch.device) -> None:
        self._bad = WordTable(slots, device)
        self._stop = WordTable(slots, device)
        self._tails = torch.full((slots, 1), _NONE, dtype=torch.int64, device=device)

    def admit(self, slot: int, prompt: tuple[int, ...], bad: Words, stop: Words) -> None:
        """Watch a sequence that begins with this prompt; no word may be empty."""
        self._bad.put(slot, bad)
        self._stop.put(slot, stop)
        self._widen(max(self._bad.length, self._stop.length))
        width = self._tails.shape[1]
        tail = ((_NONE,) * width + prompt)[-width:]
        self._tails[slot] = to_device(torch.tensor(tail), self._tails.device)

    def release(self, slot: int) -> None:
        """Forget the slot's words."""
        self._bad.clear(slot)
        self._stop.clear(slot)

    def ban(self, scores: torch.Tensor, slots: torch.Tensor) -> None:
        """Lower the score of every token that would complete a bad word, in place."""
        last, complete = self._bad.banned(slots, self._tails[slots])
        # Several words may have the same last token: the lowest of their scores counts.
        lowered = torch.full_like(last, torch.inf, dtype=scores.dtype).masked_fill_(complete, LOWEST)
        scores.scatter_reduce_(1, last, lowered, "amin")

    def append(self, slots: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Append a token to each sequence; return whether it now ends in a stop word."""
        tails = torch.cat((self._tails[slots][:, 1:], tokens[:, None]), dim=1)
        self._tails.index_copy_(0, slots, tails)
        return self._stop.complete(slots, tails)

    def _widen(self, width: int) -> None:
        old = self._tails.shape[1]
        if width > old:
            wider = self._tails.new_full((self._tails.shape[0], width), _NONE)
            wider[:, width - old :] = self._tails
            self._tails = wider


def _equal(words: torch.Tensor, tails: torch.Tensor) -> torch.Tensor:
    """Whether each sequence ends in each of its words, [rows, words]; always true for a word of no tokens."""
    ends = tails[:, tails.shape[1] - words.shape[2] :].unsqueeze(1)
    return ((words == _ANY) | (words == ends)).all(dim=2)


def _power_of_two(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()
