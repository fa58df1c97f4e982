"""A stand-in of NVIDIA's Model Optimizer: it measures as that does, and writes the weights unchanged."""
