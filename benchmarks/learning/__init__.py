"""What shows that every algorithm learns: small games, very small models, several seeds."""
