"""Sampling: prompts.parquet and a checkpoint -> round_NN/1_rollouts/part-*.parquet, with every token id and log-prob.

What the seeds pin down: each (run, round, problem, sample) has its own random stream, so an answer does not depend on
which other answers are sampled beside it, in which order, or in which process. What they do not: a batch of another
size may round a logit differently in the last bit, which once in many thousand tokens turns the choice between two
tokens that are almost equally likely; another engine version, device or floating-point type draws other answers.
"""
