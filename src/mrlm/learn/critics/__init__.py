"""Critics: value models and mixers."""
