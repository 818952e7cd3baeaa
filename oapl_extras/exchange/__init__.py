"""Rollouts of other projects in, ours out: the schema of the OAPL authors' offline data sets, read by verl too.

Its columns:

    data_source
    prompt                        a conversation
    ability
    reward_model                  {style, ground_truth}
    extra_info                    {split, index}
    response                      text
    precomputed_reward
    response_rewards              the group's list, on each of its rows
    response_token_ids            optional

Exports add ``problem_id``, ``kind`` and ``info`` to ``extra_info`` (``offline_row.ABOUT``). They add a column
``sampling`` with fields for which that schema has no room (policy hash, log-probs, finish reason, settings). Imports
use both where they are. Rollouts of several turns have a column ``turns`` (columns.TURNS).
"""
