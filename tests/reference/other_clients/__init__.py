"""Others' clients of OpenAI's protocol: scripts that ask with them, each in the client's own environment."""
