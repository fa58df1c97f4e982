"""The supervisor of a run with a door: it starts every instance of the server, and starts again what dies."""
