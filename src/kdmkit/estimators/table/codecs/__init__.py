"""What a column is, and how its cells become events of kernels and come back."""
