"""Programs and maths answers judged: 1_rollouts -> 2_verdicts. See `verifier.Verifier` and the verb `verify`."""
