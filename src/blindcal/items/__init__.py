"""Labelled questions from files, named sets and the Hub, and score files with known probabilities."""
