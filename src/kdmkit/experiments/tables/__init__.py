"""Models of mixed tables: generation, copying, prediction, imputation, intervals, questions; with peers."""
