"""The published table and figures, for any models and data sets, with our methods beside the paper's."""
