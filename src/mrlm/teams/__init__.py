"""Teams as objects: saved with cards, published on the Hugging Face Hub, loaded, and played."""
