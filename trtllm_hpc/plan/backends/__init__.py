"""What differs between the backends: build command, repository, server environment."""
