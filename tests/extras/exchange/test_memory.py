"""An import is a stream: four times the rows need hardly more memory."""

import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.extras.exchange.exchanged import foreign, make_run
from tests.tiny_model import write_tiny_model

ROWS_PER_PROMPT = 8
PROGRAM = """
import resource, sys
from pathlib import Path
from oapl_core.run_folder.run import Run
from oapl_extras.exchange.import_rollouts import import_rollouts
import_rollouts(Run.open(Path(sys.argv[1])), 0, Path(sys.argv[2]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def write_source(path: Path, prompts: int) -> None:
    """Groups whose rows lie far apart; 4,000 token ids and 8 KB of text in each row."""
    draw = random.Random(0)
    rewards = [float(i % 3 == 0) for i in range(ROWS_PER_PROMPT)]
    writer: pq.ParquetWriter = None
    for sample in range(ROWS_PER_PROMPT):
        for start in range(0, prompts, 64):
            rows = []
            for prompt in range(start, min(prompts, start + 64)):
                row = foreign(f"problem {prompt}?", rewards)[sample]
                row["response_token_ids"] = [draw.randrange(3, 300) for _ in range(4000)]
                row["response"] = " ".join(map(str, row["response_token_ids"][:2000]))
                rows.append(row)
            table = pa.Table.from_pylist(rows)
            if writer is None:
                writer = pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
    writer.close()


@pytest.mark.slow
def test_memory_of_an_import_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    peaks = []
    for prompts in (100, 400):
        folder = tmp_path / str(prompts)
        folder.mkdir()
        write_source(folder / "them.parquet", prompts)
        sampling = {"group_size": ROWS_PER_PROMPT, "problems_per_part": 16}
        run = make_run(folder, write_tiny_model(folder / "model"), sampling=sampling)
        command = [sys.executable, "-c", PROGRAM, str(run.root), str(folder / "them.parquet")]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        peaks.append(int(done.stdout.split()[-1]) / 1024)
        print(f"{prompts * ROWS_PER_PROMPT} rows: {peaks[-1]:.0f} MiB")
    assert peaks[1] < peaks[0] + 150, peaks
