"""The load generator over HTTP, measured against a server whose times are known."""
