"""Models on disk: a folder with safetensors weights and a JSON configuration, nothing executable."""

from kdmkit.serialize.io import load, save

__all__ = ["load", "save"]
