"""Environments on environment servers: `environment` is the class a workflow plays, `session` the
connection behind one episode, `pool` the servers, `calling` the channels and access rules."""
