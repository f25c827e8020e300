"""Critics: value models, mixers, value heads."""
