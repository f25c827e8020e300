"""A run whose parts are workers on a Ray cluster: the process that was started keeps the loop, and
what it holds are proxies. Nothing here makes a model or a world: what does is handed over."""
