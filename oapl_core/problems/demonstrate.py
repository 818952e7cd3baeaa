"""Reads a round's rows from demonstrations: ``python -m oapl_core.problems.demonstrate RUN_DIR --round N``.

Reads the files that `rows` of the round names, problems.parquet, prompts.parquet and the base model's tokenizer. Writes
round_NN/3_groups.parquet (tables.GROUPS), where a round that samples has what it kept (demonstrations.py).
"""

from oapl_core import tables
from oapl_core.errors import DataError
from oapl_core.model_files.model_folder import tokenizer_files
from oapl_core.problems.demonstrations import Demonstrations
from oapl_core.problems.prepare import statements
from oapl_core.progress import say
from oapl_core.run_folder.run import Run
from oapl_core.settings.rows.demonstrations import DemonstrationsConfig
from oapl_core.stage import run_verb


def demonstrate(run: Run, round_number: int) -> None:
    """Write the round's groups file, unless it is there and made from the same inputs.

    Raises:
        DataError: the round samples, a file or a row cannot be used (one line with its place), or none is left.
    """
    run.check_round(round_number)
    settings = run.config.rounds[round_number].source
    if not isinstance(settings, DemonstrationsConfig):
        raise DataError(f"round {round_number}: samples its rows (`rounds.{round_number}.rows`)")
    for path in settings.demonstrations:
        if not path.is_file():
            raise DataError(f"{path}: no such file of demonstrations; check rounds.{round_number}.rows")
    path, files = run.groups(round_number), settings.demonstrations
    inputs = run.inputs([run.problems, run.prompts, *files, *tokenizer_files(run.base_model())])
    longest = settings.max_tokens or run.config.sampling.max_tokens
    prompting = {"problems": run.config.problems.slice, "stop": run.config.sampling.stop}
    depends = {**prompting, "limit": settings.limit, "max_tokens": longest}
    if run.is_done(path, inputs, depends):
        say(f"groups of round {round_number}: done")
        return
    made = Demonstrations(run, statements(run.problems), longest)
    with run.writing(path, inputs, depends) as draft:
        draft.rows = tables.write_table(draft.path, tables.GROUPS, made.rows(settings))
        dropped = ", ".join(f"{count:,} {why}" for why, count in made.dropped.items()) or "none"
        if not draft.rows:
            raise DataError(f"{', '.join(map(str, files))}: no demonstration is left; dropped: {dropped}")
        # with the counts of groups that were sampled, so that whoever reads those reads these
        counts = dict.fromkeys(("kept_rollouts", "kept_groups", "correct_rollouts"), draft.rows)
        counts |= {"rollouts": draft.rows + made.dropped.total(), "rows_read": made.rows_read}
        draft.details = {**counts, "dropped": dict(made.dropped), "trained_tokens": made.tokens}
    say(f"{draft.rows:,} demonstrations with {made.tokens:,} tokens of answers; dropped: {dropped}")


if __name__ == "__main__":
    raise SystemExit(run_verb(demonstrate, has_round=True))
