"""Trees of joint KDMs."""
