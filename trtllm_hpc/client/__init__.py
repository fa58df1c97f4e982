"""Requests to a served model: wait for the endpoint, then send prompts over gRPC and HTTP.

This package knows an endpoint and a run folder, not how the server was started.
"""
