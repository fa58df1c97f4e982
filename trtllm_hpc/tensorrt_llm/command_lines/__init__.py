"""What a job file's keys are called in upstream's programs, release by release.

One table (``table``) maps each key to the spellings that upstream has had for
it, and the release's own list of options decides which one is there. The same
walk gives the words of a plan and the findings about a job file, so that what
is not refused can be rendered.
"""
