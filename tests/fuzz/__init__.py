"""Bad options and bad files for every command: see run.py."""
