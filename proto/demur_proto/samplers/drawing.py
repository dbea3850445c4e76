"""Draws from several tables at once, as if one value after the other.

Each sample takes one word for each table. Where a word does not decide, the two words after it
complete its 192 digits. So what a source yields depends on its words alone: splitting a draw in
parts changes nothing.
"""

from collections.abc import Callable, Sequence

import numpy as np

from demur_proto.arrays import Bits, Integers, Words
from demur_proto.bits import BitSource
from demur_proto.checks import check_integer
from demur_proto.samplers.table import DIGITS, LEADING, Table

AT_ONCE = 8192  #: samples, so that their words stay in the second-level cache


def draw(
    tables: Sequence[Table],
    count: int,
    source: BitSource,
    *,
    combine: Callable[[Words], Integers],
) -> Integers:
    """`count` independent values [count], each made from one value of each table.

    Args:
        tables: which ones.
        count: how many; >= 0.
        source: of the bits.
        combine: rows [tables, n], which it may write, to values [n].
    """
    check_integer("count", count, 0)
    values = np.empty(count, dtype=np.int64)
    for start in range(0, count, AT_ONCE):
        part = values[start : start + AT_ONCE]
        part[:] = combine(draw_rows(tables, len(part), source))
    return values


def draw_rows(tables: Sequence[Table], count: int, source: BitSource) -> Words:
    """Independent values of each table [tables, count]."""
    rows = np.empty((len(tables), count), dtype=np.int64)
    words = source.words(count * len(tables))
    done = 0
    while done < count:
        done += min(
            table.look_up(words[place :: len(tables)], row[done:])
            for place, (table, row) in enumerate(zip(tables, rows, strict=True))
        )
        if done < count:  # less than once in 2⁴⁶ samples, so never mind the time
            words = words[len(words) - (count - done) * len(tables) :]
            for table, row in zip(tables, rows, strict=True):
                row[done], words = _draw_one(table, words, source)
            done += 1
    return rows


def _draw_one(table: Table, words: Bits, source: BitSource) -> tuple[int, Bits]:
    """One value from the words already drawn, and the words that remain."""
    value = np.empty(1, dtype=np.int64)
    if table.look_up(words[:1], value):
        return int(value[0]), words[1:]
    words = np.concatenate([words, source.words(DIGITS // LEADING - 1)])
    first, second, third = (int(word) for word in words[:3])
    return table.decide(first << 128 | second << 64 | third), words[3:]
