"""Data sets and tokenisers that training reads."""
