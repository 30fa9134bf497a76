"""The mathematics of kernels: masses, moments, draws and changes of variable, of tensors alone."""
