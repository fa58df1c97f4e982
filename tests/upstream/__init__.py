"""Stand-ins for what NVIDIA's container carries, at the process boundary: programs, versions, templates.

TensorRT-LLM cannot be installed on a machine without its GPUs' software. These
programs take exactly the options that the release's list has, refuse every
other word as argparse does, and write folders of the shape that upstream's do.
"""
