"""A log level below DEBUG, for logging every request to a store."""

import logging

TRACE = 5
logging.addLevelName(TRACE, "TRACE")
