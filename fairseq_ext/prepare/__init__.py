"""Steps of data recipes, each run as `python -m fairseq_ext.prepare.STEP`."""

from fairseq_ext.errors import is_command, plain_errors

if is_command():
    plain_errors()
