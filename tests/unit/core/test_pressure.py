from forebay.core.limits import ArtificialPressure
from forebay.core.pressure import Pressure


def draws(pressure: Pressure, count: int) -> list[bool]:
    return [pressure.refuses(at % 7, at) for at in range(count)]


def test_without_settings_nothing_is_refused() -> None:
    assert not any(draws(Pressure(None), 100))


def test_the_same_seed_refuses_the_same() -> None:
    settings = ArtificialPressure(seed=4)
    assert draws(Pressure(settings), 300) == draws(Pressure(settings), 300)
    assert draws(Pressure(settings), 300) != draws(Pressure(ArtificialPressure(seed=5)), 300)


def test_about_the_given_share_is_refused() -> None:
    for share in (0.0, 0.25, 0.5, 1.0):
        pressure = Pressure(ArtificialPressure(probability=share, max_refusals=10_000))
        assert abs(sum(draws(pressure, 2000)) / 2000 - share) < 0.05


def test_the_cap_ends_it() -> None:
    pressure = Pressure(ArtificialPressure(probability=1.0, max_refusals=3))
    assert draws(pressure, 6) == [True, True, True, False, False, False]
    assert pressure.num_refused == 3
