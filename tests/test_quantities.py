import pytest

from datapipe.declared import Refused
from datapipe.quantities import Amount, take_amount, take_bytes, take_percent, take_times


@pytest.mark.parametrize(
    ("written", "amount"),
    [
        (7, Amount(7, "samples")),
        ("1 sample", Amount(1, "samples")),
        ("100k steps", Amount(100_000, "steps")),
        (" 2 M  samples ", Amount(2_000_000, "samples")),
        ("1.5B tokens", Amount(1_500_000_000, "tokens")),
        ("0.3k tokens", Amount(300, "tokens")),
        ("4T Tokens", Amount(4 * 10**12, "tokens")),
    ],
)
def test_amounts_are_read_exactly(written, amount):
    assert take_amount(written) == amount
    assert take_amount(str(amount)) == amount


def test_sizes_percent_and_times_are_exact():
    sizes = {"8GB": 8 * 10**9, "512MiB": 2**29, "7": 7, "1.5kB": 1500}
    assert {text: take_bytes(text) for text in sizes} == sizes
    assert take_percent(" 0.1 %") * 1000 == 1
    assert take_times("2.5x") * 2 == 5


AMOUNTS = [
    *("", "5", "k steps", "5 epochs", "1.5 samples", "-1 steps", -1, "5GB tokens", "5KB steps"),
    *("9e9 steps", "1,000 steps", "10000000T tokens", "5k", "samples"),
]
FACTORS = ["", "%", "x", "10", "-1%", "1%%", "1kx", "x2"]


@pytest.mark.parametrize(
    ("take", "written"),
    [
        *((take_amount, text) for text in AMOUNTS),
        *((take, text) for take in (take_percent, take_times) for text in FACTORS),
    ],
)
def test_what_is_no_quantity_is_refused(take, written):
    with pytest.raises(Refused):
        take(written)
