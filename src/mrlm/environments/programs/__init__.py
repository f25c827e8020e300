"""Code, by one agent or several, tested in a sandbox."""
