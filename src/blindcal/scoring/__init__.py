"""White-box probabilities, from an endpoint's logprobs or from the model itself."""
