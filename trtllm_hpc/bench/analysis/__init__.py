"""Analysis of recorded requests: validity, SLOs, figures over passes, and comparisons."""
