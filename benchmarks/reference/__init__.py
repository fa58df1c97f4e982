"""The reference backend compared with transformers without a server: contenders, measurement, tables."""
