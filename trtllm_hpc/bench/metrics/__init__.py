"""Each figure of the benchmark: one small class with its unit and its formula."""
