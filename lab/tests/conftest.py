"""Settings that all tests share."""

from hypothesis import settings

settings.register_profile("kdmlab", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("kdmlab")
