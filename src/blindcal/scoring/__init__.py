"""White-box probabilities, where a model shows them: an endpoint's logprobs, or the model itself."""
