"""How much of a context fits beside a question's choices."""

from __future__ import annotations

from collections.abc import Sequence

from fedapp.errors import DataError


def room_for_context(choices: Sequence[Sequence[int]], special: int, longest: int) -> int:
    """Return how many tokens of the context every choice of a question can stand beside.

    It is one number for all choices, so that they are judged by the same evidence.

    Parameters
    ----------
    choices : sequence of sequence of int
        Token ids of each choice, which is never cut.
    special : int
        Special tokens around context and choice.
    longest : int
        Setting ``model.max_length``.

    Raises
    ------
    DataError
        If not even one token of context fits.
    """
    widest = max(map(len, choices))
    room = longest - special - widest
    if room < 1:
        raise DataError(
            f"a choice of {widest} tokens and {special} special ones leave no room for the context "
            f"within model.max-length {longest}, and a choice is never cut; expected at most "
            f"{longest - special - 1}: raise model.max-length or shorten the choice"
        )
    return room
