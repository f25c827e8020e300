"""Self-play populations: past policies as opponents, matchmaking and ratings."""
