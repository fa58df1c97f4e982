"""The engine cache: outputs of build steps, found again by a hash of everything that went into them.

Each output, an engine or a step towards it, is in a folder named after its key: a hash of the command, the
model's files, the versions and the GPU. Standard library only: the same code looks outputs up on the login
node, before anything is submitted, and builds them inside the job's container.
"""
