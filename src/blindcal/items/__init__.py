"""Labelled questions and where they come from: files, data sets by name, the Hub, or made by code.

A score file, which holds known probabilities of such items, is read here too.
"""
