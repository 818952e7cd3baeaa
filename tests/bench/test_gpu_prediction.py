"""The component model computes what its formulas say, for cases worked out by hand."""

import pytest

from bench.gpu.plan import PLAIN, VARIANTS
from bench.gpu.prediction import predict


def test_a_small_model_with_short_answers() -> None:
    found = predict("0.6B", 0, 1000, PLAIN)
    # 28 layers of 15.7 million weights, 8 FLOP each at 500 TFLOP/s
    assert found.us["products"] == pytest.approx(8 * 28 * 15_728_640 / 500e12 * 1e6)
    assert found.us["elementwise"] == pytest.approx(28 * 4.2 * 288_768 / 2.5e12 * 1e6)
    assert found.us["attention"] == pytest.approx(8 * 28 * 2048 * 1000 / 267e12 * 1e6)
    assert found.us["output layer"] == pytest.approx(8 * 151_936 * 1024 / 395e6 + 60 * 151_936 / 2.98e6)
    assert found.flop == 6 * 28 * 15_728_640 + 6 * 151_936 * 1024 + 6 * 28 * 2048 * 1000
    assert found.share_of_sheet == pytest.approx(found.flop / sum(found.us.values()) / 989e6)


def test_each_mend_takes_its_own_component_down() -> None:
    plain = predict("4B", 256, 10240, PLAIN)
    for name, component in (("liger", "elementwise"), ("flash-4", "attention"), ("flash-3", "attention")):
        mended = predict("4B", 256, 10240, VARIANTS[name])
        assert {key for key in plain.us if mended.us[key] < plain.us[key]} == {component}
    kept = predict("4B", 256, 10240, VARIANTS["kept"])
    assert kept.us["products"] == pytest.approx(0.75 * plain.us["products"])
    assert predict("4B", 256, 10240, VARIANTS["attention kept"]).us["attention"] == kept.us["attention"]
    half = predict("4B", 256, 10240, VARIANTS["half kept"])
    assert half.us["products"] == pytest.approx((plain.us["products"] + kept.us["products"]) / 2)
    assert plain.share_of_sheet < predict("4B", 256, 10240, VARIANTS["together"]).share_of_sheet < 1


def test_a_prompt_has_no_part_in_the_output_layer() -> None:
    assert predict("0.6B", 1024, 1024, PLAIN).us["output layer"] == pytest.approx(
        predict("0.6B", 0, 2048, PLAIN).us["output layer"] / 2
    )
