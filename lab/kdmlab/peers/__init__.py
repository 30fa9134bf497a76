"""Other libraries beside kdmkit, each in an environment of its own: likelihood, draws, questions and time.

`worker` runs in the environment of a library and imports nothing but numpy, pandas and that library.
"""
