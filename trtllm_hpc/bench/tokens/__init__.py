"""How many tokens a prompt and an answer have, and who says so."""
