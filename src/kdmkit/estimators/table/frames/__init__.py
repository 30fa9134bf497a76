"""Frames and files in, frames out: pandas, polars, Arrow, mappings, arrays, CSV and Parquet."""
