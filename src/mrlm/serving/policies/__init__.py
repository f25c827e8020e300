"""The policy server: gRPC and OpenAI-compatible HTTP."""
