"""Write ``docs/reference/causes.md``: every entry of the table of causes, by area."""

from __future__ import annotations

from pathlib import Path

from trtllm_hpc.logs.causes.table import AREAS, Kind, causes

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "causes.md"


def page() -> str:
    """Return the page as Markdown."""
    total = sum(cause.kind is not Kind.NOISE for cause in causes().values())
    parts = [_HEAD.format(total=total)]
    for area in AREAS:
        rows = [cause for cause in causes().values() if cause.area == area and cause.kind is not Kind.NOISE]
        parts.append(f"### {area}\n\n| ID | what happened | what to do | seen in |\n|---|---|---|---|\n")
        for cause in rows:
            mark = " (a consequence)" if cause.kind is Kind.CONSEQUENCE else ""
            cells = (f"`{cause.id}`{mark}", cause.sentence, cause.next, ", ".join(cause.sources))
            parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
        parts.append("\n")
    noise = ", ".join(f"`{cause.id}`" for cause in causes().values() if cause.kind is Kind.NOISE)
    return "".join(parts) + f"Ignored, because healthy runs print these lines too: {noise}.\n"


_HEAD = """# Causes of failures

`trtllm-hpc status`, `submit --wait` and `logs` name the cause of a failed run. `trtllm-hpc explain FILE...`
finds the cause in any log, even of a job that this toolkit did not start:

```console
$ trtllm-hpc explain slurm-4711.out
cause: Ranks 2 and 0 were given the same GPU (1000).
next: Every rank has to see all GPUs of its node, or one of its own: check gpus_per_node, ...
  slurm-4711.out:118, rank 2: gpu3:29880:30398 [0] init.cc:497 NCCL WARN Duplicate GPU detected : rank 2 ...
```

Logs may be compressed (gzip, bzip2, xz, zstd) or in UTF-16. A folder stands for the files in it, a run's name
for its logs. All logs of a job are read together.

## How a cause is found

1. Prefixes of lines are removed: colours, times, levels, ranks, names of containers, pods, hosts and workers,
   quotation marks of quoted text, and any other prefix that neighbouring lines share.
2. A line is a candidate if it matches an entry of the table below, or if it is an error: the end of a
   traceback, `fatal error:`, `FATAL`, or an error of a compiler, a linker, Slurm or a container. A line with
   the level information or warning is not a candidate, and neither is a line before the server became ready.
3. A line that only reports another failure (a worker died, a subprocess returned a non-zero status,
   `MPI_ABORT`, all models failed to load) is a consequence, in whichever log it is. Of chained Python
   exceptions, the direct cause comes first; a handled exception comes last.
4. An error continues in the lines after it: indented lines, lines without the error's prefix, lines between
   dashed lines, lines with `expected`, `please`, `caused by`. From a long text, the lines with the reason or
   the remedy are quoted; from an exception without a message, the source line that raised it.
5. An earlier line is shown with an error if the line reports that something did not work (`not found`,
   `falling back`, `disabled`), even as a warning, and shares a rare word with the error (a path, a name, an
   option, a number). If the error only reports another failure, such a line comes first.
6. For an error without an entry, the next step comes from the error's line, by the rules in
   `data/advice.toml`: its own words (`please set ...`), an option, a variable, a path, a host, an HTTP
   status, the name of an error number, a signal, or the package and line of the last frame.
7. A time limit or another end of the job is a consequence if an entry that is not a consequence comes before
   it. A program's own proposal (`Possible solutions:`, `Hint:`) is quoted as the next step. Tracebacks at
   information level do not count as errors.
8. A root cause comes before its consequences on other ranks, whatever the ranks' clocks show; a precise cause
   before a cause that only names the kind of failure; a failure that ends a process before a failure of
   single requests; `fatal` before `error`. Otherwise, the order of the lines decides.

The answer shows how much is known: in words, as `degree` in JSON ([fields](json.md#explain)), and as the exit
code:

| | means | exit code |
|---|---|--:|
| `cause` (`known cause`) | only this cause writes the line, and no other error comes before it | 1 |
| `likely cause` | the line shows the kind of failure: its package, file, device or peer | 3 |
| `first error` | the line is an error that no other error explains; nothing more is known | 4 |
| no cause | no error, or the log continues for long after its errors; the nearest lines are shown | 0 |

[Another page](../explanation/unseen-logs.md) shows how often the answer is right on logs that the authors had
not seen.

## Causes of your own

Tables in `~/.config/trtllm-hpc/causes/*.toml`, in the [site's](../how-to/sites.md)
`/etc/trtllm-hpc/causes/`, and in the cluster profile's `causes_folder` take precedence over the shipped
tables. `explain` prints mistakes in these tables.

```toml
[site-scratch]
kind = "root"                   # or "consequence", or "noise": printed by healthy runs
patterns = ["scratch2: quota of group (?P<group>\\S+) is used up"]  # Python's regular expressions
sentence = "The scratch quota of group {{group}} is used up."
next = "Ask the group's owner to remove old runs: scratch-quota {{group}}."

[cuda-out-of-memory]
off = true                      # switches a shipped entry off
```

`generic = true` marks an entry that only names the kind of failure, `lines = 3` an entry whose patterns span
three lines, `calm = true` an entry that also counts in warnings. A shipped entry is a known cause only if it
states the reason: `specific = "option"`, `"code"`, `"path"` or `"message"`. Your own entry is a known cause
unless it is generic.

Below each answer are the five most suspicious lines of all logs, with rank, node, time and place. Lines of
the last cluster of errors before the end count most.

## The table

The table has {total} causes. `make golden` generates it from `trtllm_hpc/logs/causes/data/*.toml`. Words in
braces are filled in from the log. `tests/logs/excerpts/` has a log with each cause.

"""
