"""The built-in corpus: sentences of a small English and German grammar."""
