# `make demo` goes from an empty checkout to a better model; `make test` is what CI runs.
.PHONY: help setup work demo test test-gpu check site bench server worker deploy lock wheel clean
bin := .venv/bin

help:   ## this list
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  make \1\t\2/p' Makefile

setup:  ## .venv from the lock to run with that fits this machine; does nothing when up to date
	@bash requirements/install.sh

work:  ## the same, and what checks, tests and the site need more
	@bash requirements/install.sh work

demo: setup  ## two rounds of OAPL on a tiny model, ending in a report
	@$(bin)/oapl run deployments/experiments/demo.toml

check: work site/index.html  ## ruff, its formatter, mypy --strict, import contracts, undeclared imports, budgets of size, the site's links
	@$(bin)/ruff check .
	@$(bin)/ruff format --check --quiet .
	@$(bin)/mypy
	@$(bin)/lint-imports
	@$(bin)/deptry deployments flows tasks oapl_core oapl_extras
	@$(bin)/python -m pytest -q tests/architecture/test_budgets.py tests/architecture/test_size.py

site: work site/index.html  ## site/: served (`python3 -m http.server -d site`), or read from the disk without search; a broken link is an error

# Built again only when a page, a docstring or a setting changed. `--quiet` would hide the warnings that `strict` counts.
site/index.html: mkdocs.yml $(wildcard *.md data/*.md data/columns.toml docs/*.md docs/*/* deployments/commands/*.py examples/* tests/synthetic_run.py oapl_core/*.py oapl_core/*/*.py oapl_extras/*/*.py) | work
	@NO_MKDOCS_2_WARNING=1 $(bin)/python -m mkdocs build

test: check  ## the checks, then every test but gpu, bench, slow and browser
	@$(bin)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

test-gpu: work  ## the tests that need an NVIDIA GPU: the rungs of `oapl prove`
	@$(bin)/python -m pytest -m gpu tests/gpu

bench: work  ## the speed measurements of bench
	@$(bin)/python -m pytest -m bench bench

# One connection to SQLite, which `:memory:` anywhere in the URL means to Prefect 3.7: with several it logs `database is
# locked`. Name a PostgreSQL the same way.
server: export PREFECT_API_DATABASE_CONNECTION_URL ?= sqlite+aiosqlite:///file:$(or $(PREFECT_HOME),$(HOME)/.prefect)/prefect.db?uri=true&one=:memory:

server: setup  ## a Prefect server with its UI on http://127.0.0.1:4200; data in ~/.prefect
	@mkdir -p $(or $(PREFECT_HOME),$(HOME)/.prefect)
	@$(bin)/python -m deployments.serving

worker deploy: export PREFECT_API_URL ?= http://127.0.0.1:4200/api

worker: export PREFECT_WORKER_WEBSERVER_HOST ?= 127.0.0.1
worker: export PREFECT_WORKER_WEBSERVER_PORT ?= 4280

worker: setup  ## runs what is deployed, on this machine, says how it is on :4280/health; stopped, it ends its runs too
	@$(bin)/prefect worker start --pool oapl --type process --with-healthcheck

deploy: setup  ## prefect.yaml to the server: oapl-round (nightly), oapl-experiment, oapl-conclude, oapl-evaluate, oapl-compare; POOLS="a b" for [fleet]
	@$(bin)/python -m deployments.deploying $(POOLS)

lock:  ## requirements/*.lock from requirements/*.in; UPGRADE=1 takes the newest
	@bash requirements/lock.sh

wheel: setup  ## dist/oapl-*.whl, which runs without a checkout: docs/installing.md
	@rm -rf build # setuptools would pack what an earlier build left there
	@$(bin)/uv build --quiet --wheel
	@ls dist/*.whl

clean:  ## remove .venv and caches; data/runs stays
	rm -rf .venv .setup.lock .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info build dist site
