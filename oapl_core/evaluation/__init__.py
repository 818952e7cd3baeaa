"""Evaluation: checkpoints and problems -> NN_evaluation rows with a verdict each, the chosen epoch, unbiased pass@k."""
