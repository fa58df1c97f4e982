"""Every rule of job files, profiles, releases and machines: before rendering, before the queue, in doctor."""
