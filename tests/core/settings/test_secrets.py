"""A key in a setting is refused before anything is printed or kept, and the line does not show it."""

from pathlib import Path

import pytest

from oapl_core.errors import ConfigError
from oapl_core.settings.experiment_file import load_experiment
from oapl_core.settings.operation.secrets import holds_key, masked
from oapl_extras.remote.object_store import ObjectStore
from tests.core.settings.test_experiment_file import MINIMAL

JUDGE = """
[reward.judge]
model = "m"
prompt = "prompt.jinja"
canaries = "canaries.jsonl"
url = "http://judge/v1"
"""
KEYS = [
    "s3://KEY:SECRET@bucket/runs",
    "s3://SECRET@bucket/runs",
    "s3://bucket/runs?access_key=a&secret_key=SECRET",
    "s3://bucket/runs?session_token=SECRET",
    "https://bucket.example/runs?X-Amz-Signature=SECRET",
    "abfs://container@account.dfs.core.windows.net/runs?sig=SECRET",
    "abfs://container:SECRET@account.dfs.core.windows.net/runs",
    "https://SECRET@host/v1",
    "http://me:SECRET@host/v1",
    "http://host/v1?api_key=SECRET",
]


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompt.jinja").write_text("{{ problem.statement }} {{ response }}")
    path = tmp_path / "small.toml"
    path.write_text(MINIMAL + JUDGE)
    return path


@pytest.mark.parametrize(
    ("key", "url"),
    [("mirror", url) for url in KEYS]
    + [(key, url) for key in ("reward.judge.url", "sampler.urls") for url in KEYS if url.startswith("http")],
)
def test_a_url_with_a_key_is_refused_and_not_shown(experiment: Path, key: str, url: str) -> None:
    value = f'["{url}"]' if key == "sampler.urls" else f'"{url}"'
    with pytest.raises(ConfigError, match=rf"`{key}.*(holds a key|a key goes into the environment)") as caught:
        load_experiment(experiment, [f"{key}={value}"])
    assert "SECRET" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("url", KEYS)
def test_a_mirror_that_is_given_to_a_command_is_refused_alike(url: str) -> None:
    with pytest.raises(ConfigError, match="holds credentials") as caught:
        ObjectStore(url)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("key", ["reward.judge.api_key", "sampler.api_key_env"])
@pytest.mark.parametrize("value", ["sk-proj-SECRET", "SECRET with spaces", "a/SECRET", ""])
def test_a_key_in_the_place_of_a_variables_name_is_refused_and_not_shown(
    experiment: Path, key: str, value: str
) -> None:
    with pytest.raises(ConfigError, match=f"`{key}`: is the name of a variable") as caught:
        load_experiment(experiment, ['sampler.urls=["http://a:1"]', f'{key}="{value}"'])
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/runs?region=eu-1&endpoint=http://localhost:9000",
        "file:///disk/runs",
        "gs://bucket/runs",
        "az://container/runs",
        "/disk/runs",
        "http://host:8000/v1",
    ],
)
def test_other_urls_stay(experiment: Path, url: str) -> None:
    assert not holds_key(url)
    assert masked(url) == url or "@" in url
    assert load_experiment(experiment, [f'mirror="{url}"']).mirror == url
