"""The benchmark: workloads, open and closed loops, a record of each request, and figures."""
