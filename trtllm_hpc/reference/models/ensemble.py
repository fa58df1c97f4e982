"""The ensemble has no code; Triton only wants its version folder to be there."""
