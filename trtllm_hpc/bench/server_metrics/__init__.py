"""The server's own metrics during a measurement."""
