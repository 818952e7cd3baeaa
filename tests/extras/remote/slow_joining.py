"""``oapl join`` with a made-up sampler: ``python -m tests.extras.remote.slow_joining URL FOLDER LEASE_S``.

Works on the rounds that are open until none is. Each answer takes OAPL_TEST_ANSWER_S seconds.
"""

import sys
import time
from pathlib import Path

from oapl_extras.remote.join import join
from oapl_extras.remote.joining import fetch_round, round_to_join
from oapl_extras.remote.mirror import Mirror
from oapl_extras.remote.object_store import ObjectStore
from tests.core.rollouts.slow_sampling import Slow


def work(url: str, folder: Path, lease_s: float) -> None:
    store, mirror = ObjectStore(url), Mirror(url)
    while opened := round_to_join(store):
        run = fetch_round(mirror, url, folder / opened.token, opened)
        if run:
            join(run, opened.round, Slow, lease_s=lease_s)
        time.sleep(0.2)


if __name__ == "__main__":
    work(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
