"""How well calibrated is a black-box LLM? One query an item, no logprobs."""
