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
        parts.append(f"### {area}\n\n")
        for cause in rows:
            mark = " (consequence)" if cause.kind is Kind.CONSEQUENCE else ""
            sentence = cause.sentence.replace("__", r"\_\_")  # Markdown would print __main__ in bold
            parts.append(f"- `{cause.id}`{mark}: {sentence}\n")
        parts.append("\n")
    noise = ", ".join(f"`{cause.id}`" for cause in causes().values() if cause.kind is Kind.NOISE)
    return "".join(parts) + f"Ignored, because healthy runs print these lines too: {noise}.\n"


_HEAD = """# Causes of failures

`trtllm-hpc status`, `submit --wait` and `logs` name the cause of a failed run. `trtllm-hpc explain FILE...`
names the cause in any log, also of a job that this toolkit did not start:

```console
$ trtllm-hpc explain slurm-4711.out
cause: Ranks 2 and 0 were given the same GPU (1000).
next: nvidia-smi -L counts the GPUs: start one rank per GPU (--ntasks-per-node, ...
  slurm-4711.out:118, rank 2: gpu3:29880:30398 [0] init.cc:497 NCCL WARN Duplicate GPU detected : rank 2 ...
```

A log can be compressed (gzip, bzip2, xz, zstd) or in UTF-16. A folder stands for its files, and the name of a
run for the run's logs. `explain` reads all logs together, as the logs of one job.

## How a cause is found

1. Prefixes are removed from each line: colours, times, levels, ranks, names of containers, pods, hosts and
   workers, quotation marks, and any beginning that a neighbouring line shares.
2. A line is a candidate if it matches an entry of the table below, or if it is an error: the end of a
   traceback, `fatal error:`, `FATAL`, or an error of a compiler, a linker, Slurm or a container. Lines marked
   as information or a warning do not count, nor do lines before a server reported that it is ready.
3. A line that only reports another failure is a consequence, in whatever log it stands: a worker died, a
   subprocess returned a non-zero status, `MPI_ABORT`, all models failed to load. Of chained Python exceptions
   the direct cause goes first, and a handled exception last.
4. An error continues in the lines after it: indented lines, text between dashed lines, and lines with
   `expected`, `please` or `caused by`. Of a long text, `explain` quotes the lines with the reason or the
   remedy; of an exception without text, the source line that raised it.
5. For an error without an entry, the rules in `data/advice.toml` find the next step in the error's text: its
   own advice (`please set ...`), an option, a variable, a path, a host, an HTTP status, an error number, a
   signal, or the package and line of the last frame.
6. A time limit or another end is a consequence if another cause stands before it. If the program makes a
   proposal (`Possible solutions:`, `Hint:`), the proposal is the next step. Tracebacks logged as information
   do not count.
7. A root cause goes before its consequences on other ranks, whatever their clocks say; a precise cause before
   a generic one; what ends a process before what fails single requests; `fatal` before `error`. Then the
   order of the lines decides.

The first word of the answer (`degree` in [JSON](json.md#explain)) and the exit code show how much is known:

| | means | exit code |
|---|---|--:|
| `cause` (`known cause`) | only this cause writes the line, and no other error comes before it | 1 |
| `likely cause` | the line shows the kind of failure: its package, file, device or peer | 3 |
| `first error` | the line is an error, and no other error explains it | 4 |
| no cause | no error, or errors after which the log continues for long; the nearest lines are shown | 0 |

[Another page](../explanation/unseen-logs.md) shows how often the answer is right on unseen logs.

## Causes of your own

Write tables into `~/.config/trtllm-hpc/causes/*.toml`, the [site's](../how-to/sites.md)
`/etc/trtllm-hpc/causes/`, or the folder that the cluster profile names (`causes_folder`). Their entries come
before the shipped ones. `explain` reports errors in these files.

```toml
[site-scratch]
kind = "root"                   # or "consequence", or "noise": healthy runs print it too
patterns = ["scratch2: quota of group (?P<group>\\S+) is used up"]  # Python's regular expressions
sentence = "The scratch quota of group {{group}} is used up."
next = "scratch-quota {{group}} shows the group's owner: ask the owner to remove old runs."

[cuda-out-of-memory]
off = true                      # do not use this shipped entry
```

`generic = true` marks an entry that only names the kind of failure, `lines = 3` an entry whose patterns span
three lines, `calm = true` an entry that counts in warnings too. A shipped entry is a known cause only with
`specific = "option"`, `"code"`, `"path"` or `"message"`, which names what makes it certain. Your entries are
known causes unless they are generic.

Below each answer stand the five most suspicious lines of all logs, with rank, node, time and place. Lines of
the last cluster of errors before the end count most.

## The table

The table has {total} causes. `explain` prints the next step of each cause that it finds. All next steps are
in `trtllm_hpc/logs/causes/data/*.toml`, with links to public logs of the cause. Words in braces come from the
log. `tests/logs/excerpts/` quotes a log for each cause.

"""
