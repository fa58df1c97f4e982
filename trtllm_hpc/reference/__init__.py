"""The reference backend: TensorRT-LLM's Triton models, computed by PyTorch and transformers.

It stands in for TensorRT-LLM on machines that have none, on CPU or CUDA. Model
code, beam search and tensor-parallel plans are transformers'; what is written
here is the contract (tensors, limits, ranks), the plan of each step over a
paged KV cache, and the choice of tokens.

``repository`` and ``engine_config`` need the standard library only, because
rendering imports them on machines without torch.
"""
