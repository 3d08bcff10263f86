"""Code that exported folders carry, with the files of attention and mechanisms that they use."""
