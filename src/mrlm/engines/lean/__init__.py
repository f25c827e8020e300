"""Samples from Llama-like models in this process with a decoder of its own: shared prompts are
stored once, finished rows are replaced by waiting ones, and a prefix cache persists between
calls."""

from mrlm.engines.lean.engine import LeanEngine

PLUGIN = LeanEngine
