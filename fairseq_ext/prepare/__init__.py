"""Steps of data recipes, each run as `python -m fairseq_ext.prepare.STEP`."""

from fairseq_ext.errors import plain_errors

plain_errors()
