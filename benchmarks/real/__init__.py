"""A pretrained model in tasks of words and numbers: does it learn, and does a team do better?"""
