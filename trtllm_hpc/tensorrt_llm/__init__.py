"""All that is known of TensorRT-LLM: releases, how they are told what to build, what memory a model takes."""
