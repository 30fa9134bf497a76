"""The model behind a table: a layer over the variables of its schema, and its fit."""
