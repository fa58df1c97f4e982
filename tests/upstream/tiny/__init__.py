"""A tiny ``tensorrt_llm`` with the parsers only, whose files a test may copy and change."""
