"""The library at work on real data: the demonstration and the paper's experiments."""
