"""Speeds of `oapl plan`: the nearest measurement or prediction, with its source; a setting replaces it."""

from oapl_core.settings.operation.estimate import EstimateConfig
from oapl_extras.plan.speeds import Speed, speeds, with_speeds


def test_sizes_and_lengths_are_compared_by_their_ratios() -> None:
    one = Speed(0.3, 4e9, 1000, "")
    assert one.distance(8e9, 1000) == one.distance(2e9, 1000) == one.distance(4e9, 500) > one.distance(5e9, 1000)


def test_each_speed_that_is_left_out_is_filled_and_names_its_source() -> None:
    filled, sources = with_speeds(EstimateConfig(answer_tokens=900), 5e8)
    nearest = next(row for row in speeds()["training_share"] if row.parameters < 1e9 and row.answer_tokens < 2000)
    assert filled.training_share == nearest.value
    assert sources["training_share"] == nearest.source
    assert set(sources) == {"training_share", "sampling_share", "engine_start_s"} == set(speeds())
    assert all(sources.values())


def test_a_setting_is_kept() -> None:
    filled, sources = with_speeds(EstimateConfig(training_share=0.2, engine_start_s=0.0), 4e9)
    assert (filled.training_share, filled.engine_start_s) == (0.2, 0.0)
    assert set(sources) == {"sampling_share"}
