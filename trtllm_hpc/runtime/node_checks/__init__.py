"""What ``doctor --on-nodes`` looks at: a compute node, the image, and the ranks' job step."""

PARTS = ("host", "image", "ranks")
"""Where its job looks: on the node outside any container, in the image, and within the ranks' step."""
