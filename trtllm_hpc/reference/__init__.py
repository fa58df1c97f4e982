"""The reference backend: TensorRT-LLM's Triton models, computed by PyTorch and transformers.

The backend replaces TensorRT-LLM on machines without it, on CPU or CUDA. Model code and tensor-parallel plans
are those of transformers. This package adds the interface (tensors, limits, ranks),
in-flight batching over a paged KV cache, and the sampling of tokens.

``engine_folder`` needs the standard library only, so that engines can be read on machines without torch.
"""
