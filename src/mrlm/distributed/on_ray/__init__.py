"""A run whose parts are workers on a Ray cluster: the driver process keeps the loop and holds
proxies of them. This package creates neither models nor environments: factories for them are passed
in."""
