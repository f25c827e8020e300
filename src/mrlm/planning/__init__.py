"""Estimates of memory and step time of a run, on one device or a thousand. They load no model, run
no environment, and use torch only to measure this machine."""
