"""The page with runs side by side: every figure is there and not blank, with its numbers and in words."""

import csv
from pathlib import Path

import pytest

from oapl_core.errors import ConfigError, DataError
from oapl_core.reports.drawing import COLOURS
from oapl_extras.compare.panels import colour_and_marker
from oapl_extras.compare.side_by_side import write_figures
from oapl_extras.compare.side_tables import differing
from oapl_extras.compare.tracks import Track, read_track
from tests.core.reports.test_write import Page
from tests.extras.compare.measured_run import COUNTS, SHARES, write_measured_run

FIGURES = {"pass_at_k", "accuracy", "entropy", "samples"}


def pixels(path: Path) -> set[tuple[int, int, int]]:
    """The colours of a picture."""
    from PIL import Image

    with Image.open(path) as image:
        return {tuple(value[1]) for value in image.convert("RGB").getcolors(maxcolors=2**24) or ()}  # type: ignore[arg-type, misc]


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))


@pytest.fixture(scope="module")
def tracks(tmp_path_factory: pytest.TempPathFactory) -> list[Track]:
    folder = tmp_path_factory.mktemp("runs")
    worse = COUNTS | {"round 1 epoch 1": COUNTS["base"]}
    objective = write_measured_run(folder, worse, name="other", seed=2)
    runs = [write_measured_run(folder, seed=0), write_measured_run(folder, seed=1), objective]
    return [read_track(run, run.config.name) for run in runs]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tracks: list[Track]) -> Path:
    folder = tmp_path_factory.mktemp("figures") / "made" / "here"
    write_figures(tracks, folder)
    return folder


def test_every_figure_is_there_with_its_numbers_and_shows_every_label(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    assert names == {"index.html", "right_share.csv"} | {f"{f}.{kind}" for f in FIGURES for kind in ("png", "csv")}
    for figure in FIGURES:
        seen = pixels(folder / f"{figure}.png")
        assert {rgb(COLOURS[1]), rgb(COLOURS[2])} <= seen, f"{figure}: the line of a label is missing"


@pytest.mark.slow
def test_two_problem_sets_give_two_panels_and_one_gives_one(tmp_path: Path, folder: Path) -> None:
    from PIL import Image

    only = {name: {"aime/1": counts["aime/1"]} for name, counts in COUNTS.items()}
    write_figures([read_track(write_measured_run(tmp_path, only), "one")], tmp_path / "figures")
    widths = []
    for place in (folder, tmp_path / "figures"):
        with Image.open(place / "pass_at_k.png") as image:
            widths.append(image.width)
    assert widths[0] > widths[1]
    html = (folder / "index.html").read_text(encoding="utf-8")
    assert "pass@k over k on aime, hmmt" in html


def test_the_csv_holds_the_numbers_that_are_drawn(folder: Path) -> None:
    with (folder / "pass_at_k.csv").open() as file:
        rows = list(csv.DictReader(file))
    wanted = {"runs": "synthetic-seed0 synthetic-seed1", "checkpoint": "round 0", "problem_set": "aime", "k": "2"}
    (found,) = [row for row in rows if wanted.items() <= row.items()]
    assert (float(found["pass_at_k"]), found["interval"]) == (0.75, "range of 2 runs")
    with (folder / "entropy.csv").open() as file:
        steps = [r for r in csv.DictReader(file) if (r["runs"], r["metric"]) == ("other-seed2", "entropy")]
    assert [float(r["nats_per_token"]) for r in steps] == [0.75, 0.25, 0.5, 0.0, 0.5, 0.5]


def test_the_page_is_well_formed_and_needs_nothing_but_its_folder(folder: Path) -> None:
    page = Page((folder / "index.html").read_text(encoding="utf-8"))
    assert page.open == []
    links = {a.get("src") or a.get("href") or "" for _, a in page.tags if "src" in a or "href" in a}
    assert {link for link in links if not link.startswith("#")} == {p.name for p in folder.iterdir()} - {"index.html"}
    assert all(len(a["alt"] or "") > 60 for tag, a in page.tags if tag == "img")


@pytest.mark.slow
def test_what_is_missing_is_said_on_the_page(tmp_path: Path, tracks: list[Track]) -> None:
    partial = write_measured_run(tmp_path, {}, {(0, 1): SHARES[0, 1]}, seed=7, is_finished=False)
    write_figures([*tracks, read_track(partial, "partial")], tmp_path / "figures")
    html = (tmp_path / "figures" / "index.html").read_text(encoding="utf-8")
    assert "synthetic-seed7: 1 of 2 rounds are not trained" in html
    assert "Not everything is there to be drawn" in html


def test_without_measurements_the_steps_are_drawn_alone(tmp_path: Path) -> None:
    track = read_track(write_measured_run(tmp_path, {}, is_finished=False), "one")
    write_figures([track], tmp_path / "figures")
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert names == {"index.html", "accuracy.png", "right_share.csv", "entropy.png", "entropy.csv"}


def test_a_run_with_nothing_to_draw_is_said_in_one_line(tmp_path: Path) -> None:
    track = read_track(write_measured_run(tmp_path, {}, {}, is_finished=False), "one")
    with pytest.raises(DataError, match="synthetic-seed0: nothing is trained or measured yet to draw"):
        write_figures([track], tmp_path / "figures")
    assert not (tmp_path / "figures").exists()


def test_a_run_cannot_be_its_own_second_seed(tmp_path: Path, tracks: list[Track]) -> None:
    with pytest.raises(ConfigError, match="synthetic-seed0: is given twice under one label"):
        write_figures([tracks[0], tracks[0]], tmp_path)


def test_seeds_of_one_setting_differ_in_nothing_and_other_settings_are_named(
    tmp_path: Path, tracks: list[Track]
) -> None:
    assert differing(tracks) is None
    config = tracks[0].config
    other = config.training.model_copy(update={"learning_rate": 1e-5})
    changed = read_track(write_measured_run(tmp_path, seed=3, training=other, model=config.model), "synthetic")
    assert differing([*tracks, changed]) == (
        "synthetic: synthetic-seed0 and synthetic-seed3 differ in training.learning_rate"
    )


def test_many_labels_look_different() -> None:
    assert len({colour_and_marker(style) for style in range(57)}) == 57


@pytest.mark.parametrize(
    "matrix",
    [  # Machado, Oliveira and Fernandes (2009), severity 1: protanopia, deuteranopia
        ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
        ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    ],
)
def test_colour_blind_people_tell_the_first_labels_apart(matrix: tuple[tuple[float, ...], ...]) -> None:
    import numpy as np

    linear = (np.array([rgb(colour) for colour in COLOURS[1:5]]) / 255) ** 2.2
    seen = np.clip(linear @ np.array(matrix).T, 0, 1) ** (1 / 2.2)
    distances = [np.abs(seen[i] - seen[j]).max() for i in range(4) for j in range(i)]
    assert min(distances) > 0.15
