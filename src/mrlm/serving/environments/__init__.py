"""The environment server: gRPC, sessions and workers."""
