"""What recorded requests amount to: validity, limits, figures over passes, and comparisons."""
