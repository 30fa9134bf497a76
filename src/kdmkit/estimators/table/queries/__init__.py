"""Questions as people write them: the query language, and conditions on columns."""
