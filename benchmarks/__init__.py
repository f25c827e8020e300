"""Speed and memory of the library on fixed work, beside other libraries on the same work and beside
what the machine could do at best. `python -m benchmarks --help`; `docs/benchmarks.md` explains."""
