"""Questions to a fitted table, and the answers in the units of the columns."""
