"""Certificates and the decisions made by them."""
