"""Kinds of columns, and codecs between their cells and events of kernels."""
