"""Formats of OpenAI's and Triton's protocols: encode requests, and parse answers into typed parts.

Nothing here opens a connection or reads a clock.
"""
