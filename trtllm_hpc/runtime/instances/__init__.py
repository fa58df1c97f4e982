"""The supervisor of a run: it starts every instance of the server, and starts again what dies."""
