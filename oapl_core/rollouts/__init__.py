"""Sampling: prompts.parquet and a checkpoint -> round_NN/1_rollouts/part-*.parquet, with every token id and log-prob.

Each (run, round, problem, sample) has its own random stream. So an answer does not depend on the answers sampled beside
it, on how many are decoded at once, on order or process. In float32 on one machine that held for every token of 800
answers over seven settings (docs/benchmarks/sampling.md); their log-probs differed by up to 4e-6 nats. Seeds do not pin
down the rounding: another engine version, device or floating-point type rounds a logit differently. Sooner or later
that turns the choice between two tokens that are almost equally likely: bfloat16 gave half of the answers another
continuation. Sampled answers are therefore kept, never sampled again to be looked at.
"""
