"""Models on disk: tensors in the safetensors format and a description in JSON, nothing executable."""

from kdmkit.serialize.io import load, save

__all__ = ["load", "save"]
