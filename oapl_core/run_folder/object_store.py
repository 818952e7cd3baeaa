"""An object store behind a URL of a mirror: create what must not be there, put, get, list, delete; the door to obstore.

The mirror itself copies files through pyarrow, which has no conditional put. Only ``create`` is asked of a store
(S3: If-None-Match, Google: ifGenerationMatch=0, Azure: If-None-Match, a folder: a hard link), never an update.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from oapl_core.errors import ConfigError, StageFailed

# A start in front of a store that is away should say so in seconds; who can wait asks again (`PartQueue`).
_RETRIES: Any = {"max_retries": 5, "retry_timeout": timedelta(seconds=30)}
_S3_NAMES = {"endpoint_override": "endpoint", "region": "region"}
"""Words of a mirror's URL (pyarrow's) as obstore has them."""


class Unreachable(StageFailed):
    """The store does not answer, or not now."""


class Version(NamedTuple):
    """Changes whenever the object is written."""

    tag: str | None
    modified: str


class ObjectStore:
    """What lies below one URL."""

    def __init__(self, url: str, folder: str = "") -> None:
        """``url`` as `mirror` has it, and a folder below it.

        Raises:
            ConfigError: it is of no store that can be written conditionally.
        """
        import obstore

        self.url = below(url, folder)
        self._obstore, self._store = obstore, _open(self.url)

    def create(self, name: str, content: bytes) -> bool:
        """Write an object that is not there; False if it is. Content that is there from us already counts as written.

        Raises:
            Unreachable: the store does not answer; ConfigError: no such bucket, or not with these credentials.
        """
        with self._errors():
            try:
                self._obstore.put(self._store, name, content, mode="create")
            except self._obstore.exceptions.AlreadyExistsError:
                # an answer that was lost on its way is asked for again, and then our own object is in the way
                return self.get(name) == content
        return True

    def put(self, name: str, content: "bytes | Path") -> None:
        """Write an object, there or not."""
        with self._errors():
            self._obstore.put(self._store, name, content)

    def get(self, name: str) -> bytes | None:
        """Its content; None if there is none."""
        with self._errors():
            try:
                return bytes(self._obstore.get(self._store, name).bytes())
            except FileNotFoundError as error:
                self._refuse_without_bucket(error)
                return None

    def fetch(self, name: str, path: Path) -> bool:
        """Write its content to ``path``; False if there is none."""
        with self._errors():
            try:
                stream = self._obstore.get(self._store, name).stream(min_chunk_size=8 * 2**20)
            except FileNotFoundError:
                return False
            with path.open("wb") as file:
                for chunk in stream:
                    file.write(chunk)
        return True

    def list(self, folder: str) -> dict[str, Version]:
        """Names of all objects in ``folder`` and below."""
        with self._errors():
            found = self._obstore.list(self._store, folder).collect()
        return {one["path"]: Version(one["e_tag"], str(one["last_modified"])) for one in found}

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects, there or not."""
        # One by one: stores differ in what deleting many at once says of those that are not there.
        with self._errors():
            for name in names:
                try:
                    self._obstore.delete(self._store, name)
                except FileNotFoundError:
                    continue

    @contextmanager
    def _errors(self) -> Iterator[None]:
        errors = self._obstore.exceptions
        try:
            yield
        except (errors.UnauthenticatedError, errors.PermissionDeniedError) as error:
            raise ConfigError(f"{self.url}: the store refuses these credentials ({_first(error)})") from None
        except (errors.BaseError, FileNotFoundError) as error:
            self._refuse_without_bucket(error)
            if "169.254.169.254" in str(error) or "/latest/api/token" in str(error):  # asked last, when nothing is set
                raise ConfigError(
                    f"{self.url}: no credentials; set those of the store in the environment (AWS_ACCESS_KEY_ID and "
                    "AWS_SECRET_ACCESS_KEY, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_...), or give the machine "
                    "a role"
                ) from None
            raise Unreachable(f"{self.url}: does not answer ({_first(error)}); mend that and start again") from None

    def _refuse_without_bucket(self, error: Exception) -> None:
        if "NoSuchBucket" in str(error):
            raise ConfigError(f"{self.url}: there is no such bucket; make it, or look at the URL") from None


def below(url: str, folder: str) -> str:
    """The URL of a folder below ``url``; what follows its question mark stays."""
    parts = urlsplit(url)
    return parts._replace(path=f"{parts.path.rstrip('/')}/{folder}".rstrip("/")).geturl()


def _first(error: Exception) -> str:
    text = str(error).split("Debug source:")[0]
    return " ".join(text.split())[:200]


def _open(url: str) -> Any:
    from obstore.store import LocalStore, S3Store, from_url

    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    if parts.scheme == "file":
        return LocalStore(Path(unquote(parts.path)), mkdir=True)
    # One URL serves pyarrow, which copies the files, and obstore: the words after the question mark are pyarrow's.
    if parts.scheme == "s3":
        values: dict[str, Any] = {_S3_NAMES[key]: value for key, value in options.items() if key in _S3_NAMES}
        scheme = options.get("scheme", "https")
        if "://" not in values.get("endpoint", "://"):
            values["endpoint"] = f"{scheme}://{values['endpoint']}"
        return S3Store(
            parts.netloc,
            prefix=parts.path.strip("/") or None,
            client_options={"allow_http": scheme == "http"},
            retry_config=_RETRIES,
            **values,
        )
    if parts.scheme in ("gs", "gcs", "abfs", "abfss", "az"):
        return from_url(url.partition("?")[0].replace("gcs://", "gs://"), retry_config=_RETRIES)
    raise ConfigError(
        f"{url}: parts of a round cannot be shared through {parts.scheme}://; give mirror = s3://, gs://, abfs:// or file://"
    )
