"""Questions to a served model: waiting for the endpoint, and asking over gRPC and HTTP.

This package knows an endpoint and a run folder, not how the server was started.
"""
