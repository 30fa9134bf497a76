"""Fitted models on engines that map functions over batches of rows: Ray Data, Spark, Dask."""

from kdmkit.engines.batches import BatchFunction

__all__ = ["BatchFunction"]
