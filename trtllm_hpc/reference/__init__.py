"""The reference backend: TensorRT-LLM's Triton models, computed by PyTorch and transformers.

It stands in for TensorRT-LLM on machines that have none, on CPU or CUDA. The
model code, attention and caches are transformers' own; what is written here
is the contract (tensors, limits, ranks) and the glue.

``repository`` and ``engine_folder`` need the standard library only, because
rendering imports them on machines without torch.
"""
