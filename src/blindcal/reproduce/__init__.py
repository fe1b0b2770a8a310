"""The paper's table and figures for any models and data sets, with our methods next to the paper's."""
