"""Worlds and policies behind a network: `mrlm.proto`, who serves it, and who asks. No torch."""
