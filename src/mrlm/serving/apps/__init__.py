"""Apps that call agents through an OpenAI client: an address for each episode, which records."""
