"""The laboratory of kdmkit: demonstrations, benchmarks and experiments on real data.

It uses documented names of kdmkit only, and is not published.
"""
