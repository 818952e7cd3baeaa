"""Rows of a table in any order, whatever its size: reads one Parquet file of ``tables.py``, row group by row group.

Row groups that were read are kept decoded up to a byte budget, the ones used longest ago go first. So a small table is
read once, and of a large one each row costs one row group: write it with small ones (``tables.write_batches``).
"""

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from oapl_core.tables import open_table, readable

if TYPE_CHECKING:
    import pyarrow as pa

KEPT_BYTES = 256 * 2**20


class Rows:
    """Reads single rows of ``path``; the file must not change meanwhile (artifacts are replaced, never changed)."""

    def __init__(
        self, path: Path, fields: Sequence[tuple[str, str]], columns: Sequence[str], kept_bytes: int = KEPT_BYTES
    ) -> None:
        """Read ``columns`` only; at least one row group is kept, even if it is larger than ``kept_bytes``.

        Raises:
            DataError: the file is missing, torn, or has other columns than documented.
        """
        import numpy as np

        self._path, self._columns, self._most = path, list(columns), kept_bytes
        self._kept: OrderedDict[int, pa.Table] = OrderedDict()
        self._bytes = 0
        with open_table(path, fields) as file:
            self._metadata = file.metadata
        sizes = [self._metadata.row_group(g).num_rows for g in range(self._metadata.num_row_groups)]
        self._starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        self.reads = 0
        """Row groups decoded so far."""

    def __len__(self) -> int:
        """Count the rows of the file."""
        return int(self._starts[-1])

    def __getitem__(self, row: int) -> "pa.Table":
        """Return one row, as a view of its row group.

        Raises:
            DataError: the row group is damaged.
        """
        group = int(self._starts.searchsorted(row, side="right")) - 1
        return self._group(group).slice(row - int(self._starts[group]), 1)

    def _group(self, number: int) -> "pa.Table":
        import pyarrow.parquet as pq

        if number in self._kept:
            self._kept.move_to_end(number)
            return self._kept[number]
        with (
            readable(self._path),
            pq.ParquetFile(
                self._path, metadata=self._metadata, page_checksum_verification=True, pre_buffer=False
            ) as file,
        ):
            table = file.read_row_group(number, columns=self._columns, use_threads=False).combine_chunks()
        self.reads += 1
        self._kept[number] = table
        self._bytes += table.nbytes
        while self._bytes > self._most and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= oldest.nbytes
        return table
