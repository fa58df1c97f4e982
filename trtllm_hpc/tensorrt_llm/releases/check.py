"""Check a command line of one of upstream's programs against the options of one release.

Arguments are read as by Python's ``argparse``, which these programs use: ``--x WORD`` or
``--x=WORD``, unambiguous prefixes of long options, and no option of the program itself after a
sub-command. ``trtllm-serve`` uses Click, which takes no prefixes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from trtllm_hpc.config.diagnostics import nearest
from trtllm_hpc.errors import FAIL, OK, WARN, Diagnostic, State
from trtllm_hpc.tensorrt_llm.releases.commands import BY_FAMILY, COMMANDS, Command, Option, load_command
from trtllm_hpc.tensorrt_llm.releases.families import family_name
from trtllm_hpc.tensorrt_llm.releases.refusals import no_option, no_program, other_form
from trtllm_hpc.tensorrt_llm.releases.release import Release

Judgement = Literal["refused", "ignored", "note"]
"""Code of a remark. ``refused``: the tool ends with an error; ``ignored``: taken, and does nothing."""
_STATES: dict[Judgement, State] = {"refused": FAIL, "ignored": WARN, "note": OK}
_VARIABLE = re.compile(r"\$|<.*>|…|\.\.\.")
"""Words that a shell or the user fills in; they are not compared with choices."""
_NUMBER = re.compile(r"-\d+$|-\d*\.\d+$")
_NUMERIC = re.compile(r"\s*[-+]?(\d[\d_]*\.?\d*|\.\d+)(e[-+]?\d+)?\s*$|[-+]?(inf|nan)$", re.IGNORECASE)


def _remark(
    judgement: Judgement, word: str, place: int | None, message: str, hint: str | None = None
) -> Diagnostic:
    """What a release makes of one word of a command line; ``place`` is ``None`` for a missing word."""
    field = "" if place is None else f"[{place}]"
    return Diagnostic(judgement, message, field=field, value=word, hint=hint, state=_STATES[judgement])


@dataclass(frozen=True)
class Checked:
    """A command line and what one release makes of it."""

    release: str
    program: str
    family: str | None
    status: str | None
    """See ``Command.status``; ``None``: the release does not have the program."""
    words: tuple[str, ...]
    remarks: tuple[Diagnostic, ...]

    @property
    def accepted(self) -> bool:
        """Whether the release takes every word."""
        return all(remark.state != FAIL for remark in self.remarks)


class UnknownProgram(ValueError):
    """No word names one of upstream's tools; ``choices`` are those that are known."""

    def __init__(self, words: Sequence[str]) -> None:
        first = words[0] if words else ""
        super().__init__(f"no word names one of upstream's programs: {first!r}")
        self.choices = tuple(COMMANDS)


def check_words(release: Release, words: Sequence[str], family: str | None = None) -> Checked:
    """Check a command line; what stands before the program (``python3``, ``mpirun -n 4``) is left out.

    Without ``family`` the folder of the program tells it, else it is ``llama``. Raises UnknownProgram if no
    word names one of upstream's tools.
    """
    at = next((place for place, word in enumerate(words) if PurePosixPath(word).name in COMMANDS), None)
    if at is None:
        raise UnknownProgram(words)
    name = PurePosixPath(words[at]).name
    family = family or _family_of(PurePosixPath(words[at])) or "llama"
    command = load_command(release.version, name, family)
    own_family = family if name in BY_FAMILY else None
    if command is None:
        missing = _remark("refused", words[at], at, *no_program(release, name, family))
        return Checked(release.version, name, own_family, None, tuple(words), (missing,))
    remarks = tuple(_Reader(release, command, words, at + 1).read())
    return Checked(release.version, name, own_family, command.status, tuple(words), remarks)


def _family_of(program: PurePosixPath) -> str | None:
    """The family whose folder of examples holds a program; ``None`` if its path does not show it."""
    folder = program.parent.name
    return family_name(folder) or (folder if "examples" in program.parent.parts[:-1] else None)


class _Reader:
    """Goes through the words once, from left to right."""

    def __init__(self, release: Release, command: Command, words: Sequence[str], start: int) -> None:
        self.release = release
        self.command = command
        self.top = command
        self.words = words
        self.place = start
        self.given: set[tuple[str, str]] = set()
        self.plain: list[str] = []
        """Words that are no options nor their values."""

    def read(self) -> Iterator[Diagnostic]:
        while self.place < len(self.words):
            word = self.words[self.place]
            if _is_option(word):
                yield from self._option(word)
            else:
                yield from self._positional(word)
                self.place += 1
        for command in {self.top.name: self.top, self.command.name: self.command}.values():
            for option in command.options.values():
                if option.required and (command.name, option.name) not in self.given:
                    message = f"{command.name} demands it"
                    yield _remark("refused", option.name, None, message, f"add {option.name}")

    def _positional(self, word: str) -> Iterator[Diagnostic]:
        known = self.top.subcommands
        self.plain.append(word)
        if self.command is self.top and self.top.word is not None and word not in known:
            # Click's group takes a first word that names no sub-command for the word of its default.
            named = self.top.default_subcommand is not None and self.plain[0] == self.top.default_subcommand
            if len(self.plain) > 1 + named:
                message = f"{self.top.name} takes one word here, {self.top.word}"
                yield _remark("refused", word, self.place, message)
        elif self.command is self.top and word in known:
            self.command = known[word]
        elif known and self.command is self.top:
            near = nearest(word, known)
            hint = f"write {near}" if near else f"it has {', '.join(known)}"
            yield _remark("refused", word, self.place, f"{self.top.name} has no such sub-command", hint)
            if near:
                self.command = known[near]
        else:
            yield _remark("refused", word, self.place, f"{self.command.name} takes no word here")

    def _option(self, word: str) -> Iterator[Diagnostic]:
        name, _, attached = word.partition("=")
        place, option = self.place, self._find(name)
        self.place += 1
        if isinstance(option, Diagnostic):
            yield option
            self._skip_values()
            return
        self.given.add((self.command.name, option.name))
        if name.startswith("--") and name != option.name and name not in option.aliases:
            yield _remark("note", word, place, f"taken as {option.name}, which it is the beginning of")
        if option.ignored is not None:
            yield _remark("ignored", word, place, option.ignored)
        values = [attached] if "=" in word else self._values(option)
        yield from self._judge(option, word, place, values, "=" in word)

    def _find(self, name: str) -> Option | Diagnostic:
        """The option, or why there is none."""
        exact = self.command.find(name)
        if exact is not None:
            return exact
        begun = _beginning_with(name, self.command)
        if len(begun) == 1:
            return begun[0]
        if begun:
            names = ", ".join(option.name for option in begun)
            return _remark("refused", name, self.place, f"may be the beginning of {names}")
        for command in (self.command, self.top):
            spelling = other_form(name, command)
            if spelling is not None:
                # The option is not reported as missing, too.
                self.given.add((command.name, spelling))
                break
        return _remark("refused", name, self.place, *no_option(self.release, self.command, name, self.top))

    def _values(self, option: Option) -> list[str]:
        """Return the values that follow an option, as many as its form takes."""
        if option.form == "flag":
            return []
        start = self.place
        while self.place < len(self.words) and not _is_option(self.words[self.place]):
            self.place += 1
            if option.form != "list":
                break
        return list(self.words[start : self.place])

    def _skip_values(self) -> None:
        """Skip the values after an unknown option: most have some, and one refusal is enough.

        Skips one word at most where a sub-command may follow.
        """
        while self.place < len(self.words) and not _is_option(self.words[self.place]):
            if self.command is self.top and self.words[self.place] in self.top.subcommands:
                break
            self.place += 1
            if self.top.subcommands:
                break

    def _judge(
        self, option: Option, word: str, place: int, values: list[str], attached: bool
    ) -> Iterator[Diagnostic]:
        if option.form == "flag" and attached:
            yield _remark("refused", word, place, "takes no value", f"write {option.name}")
        elif option.form != "flag" and not values and not option.bare:
            yield _remark("refused", word, place, f"needs {_wanted(option)}")
        for value in values:
            if _VARIABLE.search(value):
                continue
            if option.choices and value not in option.choices:
                yield _remark("refused", word, place, f"takes {', '.join(option.choices)}, not {value!r}")
            elif _wants_number(option) and not _NUMERIC.match(value):
                sentence = f"needs a number, not {value!r}"
                hint = f"left out, it is {option.default} here" if option.default is not None else None
                yield _remark("refused", word, place, sentence, hint)


def _wants_number(option: Option) -> bool:
    """Whether the option takes numbers only, by its type or its default."""
    is_plain = option.form == "value" and not option.choices and not option.bare
    return is_plain and (option.type is not None or type(option.default) in (int, float))


def _beginning_with(name: str, command: Command) -> list[Option]:
    """Long options that begin with ``name``, which argparse accepts as their prefix."""
    if not name.startswith("--") or len(name) < 4 or command.exact:
        return []
    return [
        option
        for option in command.options.values()
        if any(spelling.startswith(name) for spelling in (option.name, *option.aliases))
    ]


def _is_option(word: str) -> bool:
    name = word.partition("=")[0]
    return name.startswith("-") and len(name) > 1 and not _NUMBER.match(word) and " " not in name


def _wanted(option: Option) -> str:
    if option.choices:
        return f"one of {', '.join(option.choices)}"
    return "one or more words" if option.form == "list" else "a value"
