"""Facts about the releases of TensorRT-LLM: containers, commands, options, defaults.

The facts are TOML files in ``data/``, each with its source; docs/reference/releases.md describes how to
read and extend them. No file is read before one of its facts is needed.
"""
