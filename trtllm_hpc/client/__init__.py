"""The client of a served model, over gRPC or OpenAI's protocol.

This package knows endpoints, not how a server was started.
"""
