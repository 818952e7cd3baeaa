"""Sampling: prompts.parquet and a checkpoint -> round_NN/1_rollouts/part-*.parquet, with every token id and log-prob.

What the seeds pin down: each (run, round, problem, sample) has its own random stream, so an answer does not depend on
which other answers are sampled beside it, how many are decoded at once, in which order, or in which process. In float32
on one machine that held for every token of 800 answers over seven settings (docs/benchmarks/sampling.md); their
log-probs differed by up to 4e-6 nats. What they do not: another engine version, device or floating-point type rounds a
logit differently, which sooner or later turns the choice between two tokens that are almost equally likely: bfloat16
gave half of the answers another continuation. What was sampled is therefore kept, never sampled again to be looked at.
"""
