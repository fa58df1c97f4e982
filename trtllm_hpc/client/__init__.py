"""Requests to a served model: wait for the endpoint, then ask over gRPC, HTTP or OpenAI's protocol.

This package knows an endpoint and a run folder, not how the server was started.
"""
