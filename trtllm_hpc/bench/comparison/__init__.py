"""Two measurements side by side: what differs, and whether that is more than chance."""
