"""Worlds that live on environment servers: the `environment` a workflow plays, the `session` behind
an episode, the `pool` of servers, and `calling`, what asking them takes."""
