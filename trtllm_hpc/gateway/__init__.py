"""The gateway: OpenAI's protocol in front of a Triton server whose models are TensorRT-LLM's."""
