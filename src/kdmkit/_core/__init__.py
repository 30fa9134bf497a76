"""Helpers that know nothing of kernel density matrices: log-domain arithmetic, input checks, shapes."""
