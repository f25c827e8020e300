"""Algorithms: turn rewards into advantages and define the loss."""
