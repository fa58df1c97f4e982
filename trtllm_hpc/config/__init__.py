"""The job file and the cluster profile: models, loading, layers and diagnostics."""
