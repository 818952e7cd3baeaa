"""Seeds: named, independent, in the range that every consumer accepts."""

from oapl_core.seeds import derive_seed


def test_a_seed_depends_on_every_word_and_nothing_else() -> None:
    seeds = {derive_seed(s, "rollout", r, p, i) for s in (0, 1) for r in (0, 1) for p in ("a", "b") for i in range(8)}
    assert len(seeds) == 64
    assert derive_seed(0, "rollout", 1) == derive_seed(0, "rollout", 1)
    assert derive_seed(0, "ab", "c") != derive_seed(0, "a", "bc")


def test_seeds_fit_31_bits() -> None:
    assert all(0 <= derive_seed(0, i) < 2**31 for i in range(1000))
