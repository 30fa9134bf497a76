"""Helpers without any knowledge of KDMs: log-domain arithmetic, precision, input checks, shapes, files."""
