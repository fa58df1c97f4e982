"""The job file and the profile resolved: layout, stages and every command line."""
