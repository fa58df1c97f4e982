"""Plan to files: the Jinja2 environment and the run folder."""
