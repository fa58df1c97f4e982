"""The engine cache: what a build step has made is found again by what went into it.

An engine, and each step towards it, lies in a folder named after a key: a hash of the command, of the model's
files, of the versions and of the GPU. Nothing here needs more than the standard library: the same code
answers on the login node, before anything is submitted, and builds inside the job's container.
"""
