"""What ``doctor --on-nodes`` looks at: a compute node, the image, and each kind of job step."""

PARTS = ("host", "image", "build", "ranks", "front")
"""Where its job looks: on the node outside any container, in the image, and within each kind of job step."""
