"""The formats of the OpenAI and Triton protocols: encode requests as bytes, and parse bytes of answers.

Modules of this package open no connections and read no clocks.
"""
