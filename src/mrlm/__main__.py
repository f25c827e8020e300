"""`python -m mrlm` is the command `mrlm`."""

from mrlm.cli import main

if __name__ == "__main__":
    main()
