"""Text files checked before they are parsed: their bytes, and the length of their lines."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kdmkit.estimators.common.arrow import need

#: Longer lines are refused: a parser holds whole lines.
LONGEST_LINE = 1 << 24
_BLOCK = 1 << 20
_NEWLINE = b"\n"


class TextError(ValueError):
    """What is wrong with a text file, and where."""


def longest_line(path: Path) -> int:
    """The bytes of the longest line of a text file, which may be compressed.

    The first line with bytes that are no UTF-8, with a zero byte, or with more than `LONGEST_LINE` bytes
    raises a `TextError`. One block of the file is in memory at a time.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    line, longest, current = 1, 0, 0
    for block in _blocks(path):
        wrong = _first_wrong_byte(block, decoder)
        if wrong is not None:
            place, what = wrong
            raise TextError(f"{what} in line {line + block[:place].count(_NEWLINE)}")
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord(_NEWLINE))
        lengths = np.diff(np.append(ends, len(block)), prepend=-1 - current) - 1
        longest = max(longest, int(lengths.max()))
        if longest > LONGEST_LINE:
            place = int((lengths > LONGEST_LINE).argmax())
            raise TextError(f"more than {LONGEST_LINE:,} bytes in line {line + place}")
        line, current = line + len(ends), int(lengths[-1])
    if decoder.getstate()[0]:
        raise TextError(f"bytes that are no UTF-8 in line {line}")
    return longest


def _first_wrong_byte(block: bytes, decoder: codecs.IncrementalDecoder) -> tuple[int, str] | None:
    """The place of the first byte that no text has, and what it is."""
    if b"\0" in block:
        return block.index(0), "a zero byte"
    try:
        decoder.decode(block)
    except UnicodeDecodeError as error:
        # The decoder may have kept the beginning of a character of the block before.
        return max(0, error.start - len(error.object) + len(block)), "bytes that are no UTF-8"
    return None


def _blocks(path: Path) -> Iterator[bytes]:
    with need("pyarrow").input_stream(str(path)) as stream:
        while block := stream.read(_BLOCK):
            yield block
