"""How well calibrated is a black-box LLM? One query an item, no logprobs."""

from blindcal.errors import BlindcalError
from blindcal.estimate.blind import BlindResult, blind
from blindcal.estimate.latent import LatentFit, latent
from blindcal.estimate.truth import binned_ece

__all__ = ["BlindResult", "BlindcalError", "LatentFit", "binned_ece", "blind", "latent"]
