"""Sends a publication to the hub in one commit, through huggingface_hub; what was sent before a kill is not sent again.

Takes HF_TOKEN and HF_ENDPOINT from the environment, as every use of the hub here.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from oapl_core.errors import ConfigError, StageFailed
from oapl_core.progress import Progress, say
from oapl_extras.exchange.outgoing import Publication

_MB = 1e6


def push(publication: Publication, to: str, private: bool, tell: Callable[[str], None] = say) -> str:
    """Push every file to the repository ``to``; returns the commit. Files of others there stay.

    Raises:
        ConfigError: no token, or one that may not write there.
        StageFailed: the hub does not answer; the same again continues.
    """
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()  # they draw over our lines
    api = HfApi()
    # the token is read by the client from its usual places; it never passes through our hands
    with _explained(to):
        api.create_repo(to, repo_type=publication.kind, private=private or None, exist_ok=True)
        additions = [CommitOperationAdd(file.name, file.content) for file in publication.files]
        with Progress(f"pushing to {to}", round(publication.bytes / _MB), "MB", tell=tell) as progress:
            sent = 0
            for addition, file in zip(additions, publication.files, strict=True):
                # one at a time: the hub keeps each whole file, so that a kill costs at most one of them
                api.preupload_lfs_files(to, [addition], repo_type=publication.kind, free_memory=False)
                sent += file.bytes
                progress.advance(round(sent / _MB) - progress.done, file.name)
        # everything becomes visible at once: a reader never sees weights of one push with the card of another
        return str(api.create_commit(to, additions, commit_message=publication.title, repo_type=publication.kind).oid)


@contextmanager
def _explained(to: str) -> Iterator[None]:
    """Turn the hub's errors into one line each."""
    import httpx2
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError, OfflineModeIsEnabled

    try:
        yield
    except HFValidationError as error:
        raise ConfigError(f"--to {to}: {' '.join(str(error).split())[:200]}") from None
    except LocalTokenNotFoundError:
        raise ConfigError(f"--to {to}: needs a token that may write there; set HF_TOKEN") from None
    except OfflineModeIsEnabled:
        raise ConfigError(f"--to {to}: HF_HUB_OFFLINE forbids it; unset that variable") from None
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise ConfigError(
                f"--to {to}: {constants.ENDPOINT} answered {status}; set HF_TOKEN to a token that may write there"
            ) from None
        _failed(to, f"answered {status}: {' '.join(str(error.server_message or '').split())[:200]}")
    except (httpx2.HTTPError, RuntimeError) as error:  # RuntimeError: how the client names a file that did not arrive
        cause: Any = error.__cause__ or error
        _failed(to, " ".join(str(cause).split())[:200] or type(cause).__name__)


def _failed(to: str, reason: str) -> None:
    from huggingface_hub import constants

    raise StageFailed(
        f"--to {to}: {constants.ENDPOINT} {reason}; run the same command again, what arrived is kept there"
    ) from None
