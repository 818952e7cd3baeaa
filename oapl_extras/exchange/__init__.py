"""Rollouts of other projects in, ours out: the schema of the OAPL authors' offline data sets, read by verl too.

Columns: ``data_source``, ``prompt`` (a conversation), ``ability``, ``reward_model {style, ground_truth}``,
``extra_info {split, index}``, ``response`` (text), ``precomputed_reward``, ``response_rewards`` (the group's list, on
each of its rows) and, optionally, ``response_token_ids``. Exports add ``problem_id`` to ``extra_info``, and a column
``sampling`` with what that schema has no room for (policy hash, log-probs, finish reason, settings). Imports use both
where they are. Rollouts of several turns have a column ``turns`` (columns.TURNS).
"""
