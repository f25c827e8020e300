"""A run whose parts are workers on a Ray cluster: the driver process keeps the loop and holds
proxies of them. Factories of models and environments are passed in."""
