"""White-box probabilities from the model itself."""
