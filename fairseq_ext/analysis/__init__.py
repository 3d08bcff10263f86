"""Analysis of trained models: attention maps, heads, weights, logs, reports."""

import logging

# fairseq sets every logger to DEBUG, and matplotlib already logs when modules here import it.
logging.getLogger("matplotlib").setLevel(logging.WARNING)
