"""Models on disk: tensors in the safetensors format and a description in JSON, nothing executable."""

from kdmkit.serialize.io import load, save
from kdmkit.serialize.shards import load_shard

__all__ = ["load", "load_shard", "save"]
