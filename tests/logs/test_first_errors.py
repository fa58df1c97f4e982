"""``explain`` on errors that no entry of the tables knows: what is quoted, and what to do next."""

from __future__ import annotations

import re
from io import BytesIO

import pytest
from click.testing import CliRunner

from trtllm_hpc.cli import command
from trtllm_hpc.logs.causes.table import _rules, words
from trtllm_hpc.logs.facts import facts_of_stream

FRAME = '  File "/opt/lib/python3.12/site-packages/moons/orbit.py", line 7, in turn\n    {source}\n'
OWN = '  File "/home/me/run.py", line 3, in main\n    orbit.turn(moon)\n'
HEADER = "Traceback (most recent call last):\n"


def explain(text: str) -> str:
    return CliRunner().invoke(command, ["explain", "-"], input=text).output


def quoted(text: str) -> str:
    """The line that is quoted below the first answer."""
    return explain(text).splitlines()[2]


def following(text: str) -> str:
    """What to do next."""
    return explain(text).splitlines()[1]


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("MoonError:\nThe moons do not fit.\n\nExpected 3 moons\nbut got 4.\n", ["do not fit", "but got 4"]),
        ("error: 2 problems found.\nmoons: too many\nradius: none\n", ["moons: too many", "radius: none"]),
        (
            "-" * 70 + "\nThe tide was unable to find the moons that were\nasked for by the program:\n\n"
            "  ./orbit\n\nEither ask for fewer moons or add --oversubscribe.\n" + "-" * 70 + "\nthe end\n",
            ["asked for", "./orbit", "--oversubscribe"],
        ),
        ("error: the tide is out\n    reason: no moon in the sky\nready\n", ["reason: no moon"]),
        (
            "ERROR: cannot turn with the installed moons.\n\nThe conflict is caused by:\n    a 1 needs b 2\n",
            ["a 1 needs"],
        ),
        ("CMake Error at CMakeLists.txt:3 (message):\n  The moon library is not there.\n", ["moon library"]),
        (
            "Exception in thread main x.MoonException: dark\n\tat x.Y.z(Y.java:3)\n"
            "Caused by: a.b.TideException: low\n",
            ["low"],
        ),
        (
            "thread 'main' panicked at src/main.rs:5:10:\ncalled `unwrap()` on an `Err` value: Dark\n",
            ["Dark"],
        ),
        ("panic: no moon\n\ngoroutine 1 [running]:\n", ["no moon"]),
        ("terminate called after throwing an instance of 'x'\n  what():  no moon\nAborted\n", ["no moon"]),
        ("[01/02/2026-10:00:00] [TRT-LLM] [E] cannot turn:\n3 moons where 4 were wanted\n", ["3 moons"]),
        (HEADER + FRAME.format(source="assert moons > 2") + "AssertionError\n", ["assert moons > 2"]),
        (HEADER + FRAME.format(source="moon = next(found)") + "StopIteration\n", ["moon = next(found)"]),
    ],
)
def test_of_an_error_of_several_lines_those_that_say_why_are_quoted(log: str, words: list[str]) -> None:
    quotation = quoted(f"fine\n{log}")
    assert all(word in quotation for word in words), quotation
    assert not any(word in quotation for word in ("the end", "ready", "goroutine"))


def test_of_a_long_text_the_first_line_and_what_to_do_are_quoted() -> None:
    text = "".join(f"    moon {number} is dark\n" for number in range(9))
    quotation = quoted(f"error: the tide is out:\n{text}    Please set MOON=1\n")
    assert "moon 0" in quotation and "Please set MOON=1" in quotation and "moon 5" not in quotation


def test_a_line_of_another_program_is_not_part_of_an_error() -> None:
    for other in ("srun: error: n1: task 1: Exited", "Warning: must not sleep", "2026-01-01 10:00 must go"):
        assert " / " not in quoted(f"KeyError: 'no such moon'\n{other}\n")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("error: no moon. Please increase moon_count to 3.", "increase moon_count to 3"),
        ("error: the moon is low. To fix this, isolate it in a sky of its own.", "isolate it in a sky"),
        ("error: the kind must be one of: full, new", "full, new"),
        ("error: --moon-kind is refused here", "--moon-kind"),
        ("error: MOON_KIND is not set", "env | grep MOON_KIND"),
        ("MoonError: Error code: 401 - no key", "Authorization"),
        ("MoonError: status code 503", "/health"),
        ("MoonException: [Errno 111] somewhere", "ss -ltn"),
        ("error: ping 10.1.2.3 timed out", "Look at 10.1.2.3"),
        ("error: cannot open /data/moons/a.bin: no such thing", "/data/moons/a.bin"),
        ("MoonException: Process 7 got signal: 1", "SIGHUP"),
        ("error: moon.sh exited with code 127", "command was not found"),
        ("error: a file of the wrong shape: /data/moons/b.bin", "ls -l /data/moons/b.bin"),
        ("error: cannot connect to http://moon:2379/v3", "Nothing answers at http://moon:2379/v3"),
        ("x.MoonException: open: AccessDenied: /data/moons", "namei -l /data/moons"),
        ("error: the moon needs X: mismatched shapes cannot be added", "Print the shapes"),
        ("slurmd: error: cannot find moon plugin for moon/full", "moon/full"),
    ],
)
def test_what_to_do_next_comes_from_what_the_line_holds(line: str, words: str) -> None:
    assert words in following(f"fine\n{line}\n")


def test_every_rule_fills_in_what_it_finds() -> None:
    given = {"place", "caller", "package"}
    for rule in _rules():
        assert rule.keys() <= {"when", "next", "more", "last"}
        names = set(re.findall(r"(?<!\$)\{(\w+)\}", rule["next"]))
        assert names - given == set(rule["when"].groupindex), rule["next"]
    assert all(pattern.search("") is None for pattern in words().values())


def test_of_an_exception_the_package_and_the_line_of_ones_own_are_named() -> None:
    answer = explain(HEADER + OWN + FRAME.format(source="turn(3)") + "TypeError: the moon is no cheese\n")
    assert "moons/orbit.py:7 in turn. It was called at /home/me/run.py:3 in main." in answer
    assert "pip show moons" in answer and "Look at /home/me/run.py:3 in main." in answer
    standard = FRAME.replace("site-packages/moons", "json").format(source="f()")
    answer = explain(
        HEADER + FRAME.format(source="turn(3)") + standard + "ValueError: the moon is no cheese\n"
    )
    assert "json/orbit.py:7" in answer and "pip show moons" in answer


def test_of_the_errors_before_the_end_of_a_program_the_first_goes_first() -> None:
    log = "moond: error: no tide\nmoond: error: cannot make orbit\nmoond: fatal: the moon does not turn\n"
    answer = explain(log).splitlines()
    assert answer[2] == (
        "  -:1: moond: error: no tide / moond: error: cannot make orbit / "
        "moond: fatal: the moon does not turn"
    )


def test_lines_of_a_traceback_whose_beginning_is_lost_are_no_errors() -> None:
    stamp = "(Worker_TP0 pid=7) ERROR 01-02 10:00:00 [moon.py:3] "
    cut = '  File "/opt/moon.py", line 3, in turn\n    turn(3)\n    ^^^^^^^\nValueError: no moon\n'
    log = "".join(f"{stamp}{line}\n" for line in cut.splitlines())
    assert quoted(log) == "  -:4: ValueError: no moon"


def test_what_neighbours_share_is_quoted_where_it_may_be_a_name() -> None:
    assert "ib6: lost carrier" in quoted("ib6: gained carrier\nib6: lost carrier\n")


@pytest.mark.parametrize(
    "line", ["[error] no moon", "ERRO[0000] no moon", "<ERROR>: no moon", 'level=error msg="no moon"']
)
def test_errors_of_more_kinds_are_seen(line: str) -> None:
    assert explain(f"fine\n{line}\n").startswith("first error: ")


def test_the_list_of_logs_names_the_first_error_not_what_followed() -> None:
    log = b"error: worker died\nerror: no moon:\n  it is new\nerror: later\n"
    assert facts_of_stream(BytesIO(log), "-").first_error == "error: no moon: / it is new"
