"""The ensemble has no code; Triton only requires its version folder."""
