"""Who reads which partition: partitions shared out among the members of a consumer. Values in, values out.

Every partition belongs to one member at most. Members that named partitions have those; the others share the rest, as
evenly as it goes, and keep what they have as far as that is even: a member that comes or goes moves no more than it
must.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice

from holdfast.arguments import several, whole
from holdfast.errors import Invalid

Named = Collection[int] | None
"""The partitions that a member named; None for one that takes its share."""


def assign(partitions: Sequence[int], members: Sequence[tuple[int, Named]], held: Mapping[int, int]) -> dict[int, int]:
    """The member of each partition. `members` are ids in the order in which they came, `held` who has what now.

    >>> assign([0, 1, 2], [(7, None), (8, None)], held={0: 7, 1: 7, 2: 7})
    {0: 7, 1: 7, 2: 8}
    """
    wanted = {number: member for member, named in members for number in named or ()}
    sharing = [member for member, named in members if named is None]
    if sharing:
        wanted.update(_shared([number for number in partitions if number not in wanted], sharing, held))
    return wanted


def _shared(partitions: Sequence[int], members: Sequence[int], held: Mapping[int, int]) -> dict[int, int]:
    holding = {member: [number for number in partitions if held.get(number) == member] for member in members}
    least, more = divmod(len(partitions), len(members))
    # One more for those who have most already: what they have need not move.
    ranked = sorted(members, key=lambda member: -len(holding[member]))
    quota = {member: least + (rank < more) for rank, member in enumerate(ranked)}
    wanted = {number: member for member in members for number in holding[member][: quota[member]]}
    left = iter([number for number in partitions if number not in wanted])
    for member in members:
        for number in islice(left, max(0, quota[member] - len(holding[member]))):
            wanted[number] = member
    return wanted


def numbers_of(partitions: int | Iterable[int] | None, count: int) -> tuple[int, ...] | None:
    """The partitions that a member named, checked."""
    if partitions is None:
        return None
    given = (partitions,) if isinstance(partitions, int) else several(partitions, "partitions", "partitions=[0, 1]")
    numbers = sorted({whole(number, "a partition") for number in given})
    if not numbers or numbers[0] < 0 or numbers[-1] >= count:
        raise Invalid(
            f"not partitions of this topic: {numbers}",
            hint=f"its partitions are 0 to {count - 1}; leave it out to share",
        )
    return tuple(numbers)
