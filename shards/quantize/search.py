"""Which layers stay in floating point so that a model loses no more than allowed."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def layers_to_keep(
    layers: Sequence[str],
    most_drop: float,
    *,
    harm: Callable[[str], float],
    drop: Callable[[Sequence[str]], float],
    done: Callable[[int], None] = lambda n: None,
) -> list[str]:
    """The layers that stay in floating point, the most harmful first; all where nothing helps.

    `harm` says how far the answers move when this layer alone is quantized, `drop` how much is lost
    when all but these layers are. The layers are sorted by harm, and the shortest head of that list
    that is good enough is found by bisection: a list of n costs n calls of `harm` and log n of
    `drop`. A longer head is taken to be no worse than a shorter one; where that fails, more layers
    stay than had to, and the result is within `most_drop` all the same. `done` hears of each call.
    """
    harms: dict[str, float] = {}
    for name in layers:
        harms[name] = harm(name)
        done(1)
    order = sorted(layers, key=lambda name: -harms[name])
    fewest, enough = 1, len(order)  # nobody asks whether keeping all of them is enough
    while fewest < enough:
        middle = (fewest + enough) // 2
        lost = drop(order[:middle])
        done(1)
        if lost <= most_drop:
            enough = middle
        else:
            fewest = middle + 1
    return order[:enough]
