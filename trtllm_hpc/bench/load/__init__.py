"""The load generator: sends requests on time and keeps what comes back."""
