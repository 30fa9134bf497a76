"""One module per library: it fits the library's model and asks it by documented calls."""
