"""Where a model's milliseconds go: one request as bars, live traffic as a table, and what to do."""
