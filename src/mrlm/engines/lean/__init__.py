"""Samples from Llama-like models in this process with a decoder of its own: prompts are stored once
for all who continue them, finished rows make room for waiting ones, and what was read is kept."""

from __future__ import annotations

from mrlm.engines.lean.engine import LeanEngine

PLUGIN = LeanEngine
