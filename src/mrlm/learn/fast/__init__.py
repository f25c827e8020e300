"""The packed forward pass: attention, prefix sharing, the LM head."""
