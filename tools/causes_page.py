"""``docs/reference/causes.md``: every entry of the table of causes, by area."""

from __future__ import annotations

from pathlib import Path

from trtllm_hpc.logs.causes.table import AREAS, Kind, causes

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "causes.md"


def page() -> str:
    """Return ``docs/reference/causes.md``: every entry of the table of causes."""
    total = sum(cause.kind is not Kind.NOISE for cause in causes().values())
    parts = [_HEAD.format(total=total)]
    for area in AREAS:
        rows = [cause for cause in causes().values() if cause.area == area and cause.kind is not Kind.NOISE]
        parts.append(f"### {area}\n\n| id | what has happened | what to do | seen in |\n|---|---|---|---|\n")
        for cause in rows:
            mark = " (a consequence)" if cause.kind is Kind.CONSEQUENCE else ""
            cells = (f"`{cause.id}`{mark}", cause.sentence, cause.next, ", ".join(cause.sources))
            parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
        parts.append("\n")
    noise = ", ".join(f"`{cause.id}`" for cause in causes().values() if cause.kind is Kind.NOISE)
    return "".join(parts) + f"Ignored, since runs that are well print it too: {noise}.\n"


_HEAD = """# Causes of failures

`trtllm-hpc status`, `submit --wait` and `logs` name the cause of a failed run; `trtllm-hpc explain FILE...`
names it in any log, also of a job that this toolkit did not start:

```console
$ trtllm-hpc explain slurm-4711.out
cause: Ranks 2 and 0 were given the same GPU (1000).
next: Every rank has to see all GPUs of its node, or one of its own: check gpus_per_node, ...
  slurm-4711.out:118, rank 2: gpu3:29880:30398 [0] init.cc:497 NCCL WARN Duplicate GPU detected : rank 2 ...
```

Logs may be compressed (gzip, bzip2, xz, zstd) or in UTF-16; a folder stands for the files in it, and a run's
name for its logs. All logs of a job are read together.

## How a cause is found

1. What stands before each line is taken off: colours, times, levels, ranks, the names of containers, pods,
   hosts and workers, the marks of quoted text, and whatever else a neighbouring line begins with, too.
2. Lines are candidates that match an entry of the table below, or that are an error: the end of a traceback,
   `fatal error:`, `FATAL`, what compilers, linkers, Slurm and containers call an error. Lines that call
   themselves information or a warning are none, nor is what stands before a server said that it is ready.
3. What only reports that something else has failed (a worker died, a subprocess returned a non-zero status,
   `MPI_ABORT`, all models failed to load) is a consequence, in whatever log it stands. Of exceptions that
   Python chains, the direct cause goes first; an exception that was handled goes last.
4. An error goes on in the lines after it: what is indented, what its prefix does not begin, what stands
   between dashed lines, what says `expected`, `please`, `caused by`. Of a long text the lines that say why or
   what to do are quoted; of an exception without words, the line of source text that raised it.
5. A line before an error that says that something did not work (`not found`, `falling back`, `disabled`), if
   only as a warning, and shares a rare word with the error (a path, a name, an option, a number) is shown
   with the error; where the error only reports that something else has failed, such a line goes first.
6. What to do about an error that no entry knows comes from what its line holds, by the rules in
   `data/advice.toml`: its own words (`please set ...`), an option, a variable, a path, a host, the status of
   HTTP, the word of an error number, a signal, the package and the line of the last frame.
7. Time limits and other ends are consequences where an entry that is none stands before them. What a program
   proposes itself (`Possible solutions:`, `Hint:`) is quoted as the next step. Tracebacks at
   information level are calm.
8. A root cause goes before its consequences on other ranks, whatever their clocks say; a precise cause before
   one that only names the kind of failure; what ends a process before what fails single requests; `fatal`
   before `error`; then the order of the lines decides.

The answer says how much is known: in words, as `degree` in JSON ([fields](json.md#explain)), the exit code:

| | means | exit code |
|---|---|--:|
| `cause` (`known cause`) | only this cause writes the line, and no other error stands before it | 1 |
| `likely cause` | the line shows the kind of failure: its package, file, device or peer | 3 |
| `first error` | the line is an error, and no other error explains it; no more is known | 4 |
| no cause | no error, or errors after which the log goes on for long; the nearest lines are shown | 0 |

How often the answer is right on logs that nobody here had seen is on
[another page](../explanation/unseen-logs.md).

## Causes of your own

Tables in `~/.config/trtllm-hpc/causes/*.toml`, in the [site's](../how-to/sites.md)
`/etc/trtllm-hpc/causes/`, and in the folder that the cluster profile names
(`causes_folder`), come before the shipped ones. `explain` prints what is wrong in them.

```toml
[site-scratch]
kind = "root"                   # or "consequence", or "noise": printed by runs that are well
patterns = ["scratch2: quota of group (?P<group>\\S+) is used up"]  # as Python has them
sentence = "The scratch quota of group {{group}} is used up."
next = "Ask the group's owner to remove old runs: scratch-quota {{group}}."

[cuda-out-of-memory]
off = true                      # a shipped entry that is not to be used
```

`generic = true` marks an entry that only names the kind of failure, `lines = 3` one whose patterns span
three lines, `calm = true` one that counts in warnings too. A shipped entry is a known cause only if it says
what makes it so: `specific = "option"`, `"code"`, `"path"` or `"message"`; yours are unless they are generic.

Below each answer stand the five most suspicious lines of all logs, with rank, node, time and place: those of
the last cluster of errors before the end count most.

## The table

It has {total} causes and is made of `trtllm_hpc/logs/causes/data/*.toml` (`make golden`), where words in
braces are filled in from the log. A log with each cause is quoted in `tests/logs/excerpts/`.

"""
