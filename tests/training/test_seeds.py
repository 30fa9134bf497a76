"""Seeds of random streams."""

from kdmkit.training.seeds import derive_seed


def test_every_fit_epoch_and_process_has_a_stream_of_its_own():
    seeds = {derive_seed(seed, epoch, part) for seed in range(5) for epoch in range(50) for part in range(4)}
    assert len(seeds) == 1000
    assert all(0 <= seed < 1 << 64 for seed in seeds)
