"""Labelled questions and their sources: files, named sets, the Hub, or code.

Score files, which hold known probabilities for such items, are read here too.
"""
