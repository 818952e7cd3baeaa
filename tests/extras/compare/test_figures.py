"""`oapl figures`: labels, several runs, and one line for what cannot be drawn."""

from pathlib import Path

import pytest

from oapl_core.errors import ConfigError, DataError
from oapl_extras.compare.figures_command import figures
from tests.deployments.test_cli import complaint
from tests.extras.compare.measured_run import COUNTS, SHARES, write_measured_run
from tests.whole_run import called


def test_runs_of_one_name_are_seeds_and_a_label_makes_them_two(tmp_path: Path) -> None:
    runs = [str(write_measured_run(tmp_path, seed=seed).root) for seed in (0, 1)]
    figures(runs, tmp_path / "seeds")
    assert "synthetic (2 runs)" in (tmp_path / "seeds/index.html").read_text()
    figures([runs[0], f"other one={runs[1]}"], tmp_path / "labels")
    assert "synthetic (1 run), other one (1 run)" in (tmp_path / "labels/index.html").read_text()


def test_the_command_says_what_is_missing_and_where_the_page_is(tmp_path: Path) -> None:
    run = write_measured_run(tmp_path, {"base": COUNTS["base"]}, {(0, 1): SHARES[0, 1]}, is_finished=False)
    done = called("figures", str(run.root), "--to", str(tmp_path / "figures"))
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "missing: synthetic-seed0: 1 of 2 rounds are not trained" in said
    assert (tmp_path / "figures/pass_at_k.png").exists()


def test_an_unknown_run_is_one_line(tmp_path: Path) -> None:
    done = called("figures", f"a={tmp_path}/nowhere", "--to", str(tmp_path / "figures"))
    assert done.returncode == 2
    assert "nowhere: is neither a run folder nor the name of one" in complaint(done)


@pytest.mark.parametrize("word", ["=data/runs/demo", "label=", " = "])
def test_half_a_label_is_refused(word: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="write LABEL=RUN, or RUN alone"):
        figures([word], tmp_path)


@pytest.mark.slow
def test_other_settings_under_one_name_need_labels(tmp_path: Path) -> None:
    first = write_measured_run(tmp_path)
    training = first.config.training.model_copy(update={"learning_rate": 1e-5})
    second = write_measured_run(tmp_path, seed=1, training=training)
    with pytest.raises(ConfigError, match="differ in training.learning_rate; .* give each setting a label: LABEL=RUN"):
        figures([str(first.root), str(second.root)], tmp_path / "figures")
    figures([f"both={run.root}" for run in (first, second)], tmp_path / "figures")


def test_a_file_in_the_way_and_a_broken_run_are_named(tmp_path: Path) -> None:
    run = write_measured_run(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file: is a file; give a folder"):
        figures([str(run.root)], tmp_path / "file")
    run.evaluation().write_bytes(b"torn")
    with pytest.raises(DataError, match="oapl.parquet: cannot be read as Parquet"):
        figures([str(run.root)], tmp_path / "figures")
