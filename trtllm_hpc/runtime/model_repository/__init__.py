"""Make Triton's model repository from upstream's templates: fill, edit, check and write it.

Standard library and protobuf only: the same code runs before submission and, from the zipapp, as the first
step of the serve stage.
"""
