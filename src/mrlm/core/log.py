"""The logger of the library."""

import logging

log: logging.Logger = logging.getLogger("mrlm")
