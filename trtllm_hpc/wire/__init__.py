"""What travels between clients and servers: requests as bytes, and bytes as typed parts of answers.

Each format of OpenAI's and Triton's protocols is written here once. Nothing here opens a connection or
reads a clock.
"""
