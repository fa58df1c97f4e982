"""The checks of ``doctor --on-nodes``: a compute node, the image, and the ranks' job step."""

PARTS = ("host", "image", "ranks")
"""Parts of the checks: on the node outside any container, in the image, and within the ranks' step."""
