# The front door. `make` alone lists what there is; every target but help and clean sets the environment up first.

PYTHON   ?= python3
VENV     := .venv
VARIANT  ?=
RECIPE   ?=
SEEDS    ?=
STUDY    ?= full_grid
STUDIES  ?=
ON       ?=
PARALLEL ?=
WORKERS  ?= auto
CONFIRM  ?=
ARGS     ?=

# A value is data: make does not expand it, and a recipe reads it from its environment ("$$VARIANT"), never as part of a
# shell line. STUDIES is split at spaces, ARGS by WITH_ARGS below.
override USER_WORDS := PYTHON VENV VARIANT RECIPE SEEDS STUDY STUDIES ON PARALLEL WORKERS CONFIRM ARGS
$(foreach name,$(USER_WORDS),$(eval override $(name) := $$(value $(name))))
export $(USER_WORDS)
override SHELL := /bin/sh

# Runs the command that it is given with the words of ARGS after it. They are split as a shell splits them: at spaces,
# but for quotes and backslashes. Nothing else in them means anything: no $, no `, no ;, no *, no ~.
override define WITH_ARGS
import os, shlex, sys
try:
    words = sys.argv[1:] + shlex.split(os.environ["ARGS"])
except ValueError as error:
    print(f"make: ARGS cannot be split into words: {error}", file=sys.stderr)
    sys.exit(2)
os.execv(words[0], words)
endef
override MAKEFILE := $(firstword $(MAKEFILE_LIST))
export WITH_ARGS MAKEFILE
override RUN := "$$VENV/bin/python" -c "$$WITH_ARGS"
override GATEBENCH := $(RUN) "$$VENV/bin/gatebench"
override PYTEST := $(RUN) "$$VENV/bin/python" -m pytest

.DEFAULT_GOAL := help
.PHONY: help setup data ablation sink-lab grid status tables claims list show bench test test-fast test-cluster lint types format clean clean-runs

ifneq ($(filter ablation show,$(MAKECMDGOALS)),)
ifeq ($(strip $(VARIANT)),)
$(error VARIANT is missing: try `make $(firstword $(filter ablation show,$(MAKECMDGOALS))) VARIANT=g1_headwise`, and `make list` for the names)
endif
endif

# Done once, and again only when pyproject.toml, constraints.txt, the Python version or the place of this folder changes.
# The stamp is removed first and written last, so that a setup that was interrupted never counts as done.
override define SETUP_SCRIPT
set -eu
fail() { printf 'make setup: %s\n' "$1" >&2; exit 2; }
say() { printf '%s\n' "$1" >&2; }
STAMP=$VENV/.setup-stamp

# A new environment clears its folder first.
[ -n "$VENV" ] || fail "VENV is empty: name the folder of the environment"
[ "$VENV" = .venv ] || [ ! -e "$VENV" ] || [ -e "$VENV/pyvenv.cfg" ] ||
    fail "VENV=$VENV is there and is no virtual environment: name another folder"

command -v "$PYTHON" >/dev/null 2>&1 || fail "no '$PYTHON' found: install Python 3.11 or newer, or name one with PYTHON=/path/to/python3"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$PYTHON is $("$PYTHON" --version 2>&1): gatebench needs Python 3.11 or newer, name one with PYTHON=/path/to/python3"

# Two of these at once in one folder wait for each other, where the system has flock.
if command -v flock >/dev/null 2>&1; then exec 9<pyproject.toml; flock 9 2>/dev/null || true; fi

place=$("$PYTHON" -c 'import os, sys; print(sys.implementation.cache_tag, sys.version.split()[0], os.getcwd())')
inputs=$("$PYTHON" -c 'import hashlib, sys
print(hashlib.sha256(b"\0".join(open(name, "rb").read() for name in sys.argv[1:])).hexdigest())' pyproject.toml constraints.txt)
old_place= old_inputs=
if [ -x "$VENV/bin/python" ] && [ -r "$STAMP" ]; then { read -r old_place && read -r old_inputs; } <"$STAMP" || true; fi
if [ "$place" = "$old_place" ] && [ "$inputs" = "$old_inputs" ]; then exit 0; fi

rm -f "$STAMP"
if [ "$place" = "$old_place" ]; then
    say "[1/2] keeping $VENV: pyproject.toml or constraints.txt has changed"
else
    # The interpreter beneath an active environment, so that .venv is never made from itself.
    base=$("$PYTHON" -c 'import sys; print(getattr(sys, "_base_executable", None) or sys.executable)')
    "$base" -c 'import venv, ensurepip' 2>/dev/null ||
        fail "$base has no venv or ensurepip: on Debian or Ubuntu, apt-get install python3-venv"
    say "[1/2] making $VENV with $("$base" --version)"
    "$base" -m venv --clear "$VENV" || fail "python -m venv $VENV failed"
fi

say "[2/2] installing gatebench and what it needs (a minute or two; torch is the large one)"
log=$VENV/setup.log
rm -f "$VENV/.pip-done"
{ "$VENV/bin/python" -m pip install --disable-pip-version-check --progress-bar off -c constraints.txt -e '.[dev]' 2>&1 &&
    : >"$VENV/.pip-done"; } | tee "$log" |
    grep --line-buffered -oE '(Downloading|Using cached) [^ ]+ \([0-9.]+ [MG]B\)|^Installing collected packages|^ERROR: .*' |
    sed -u 's/^/      /' >&2 || true
[ -e "$VENV/.pip-done" ] || fail "pip failed, all of its output is in $log: $(grep '^ERROR' "$log" | tail -n 1)"
rm -f "$VENV/.pip-done"
printf '%s\n%s\n' "$place" "$inputs" >"$STAMP.new"
mv "$STAMP.new" "$STAMP"
say "ready: $VENV/bin/gatebench --help"
endef

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' "$$MAKEFILE"

setup: export SETUP_SCRIPT := $(value SETUP_SCRIPT)
setup: ## Make .venv and install everything; does nothing when that is up to date
	@sh -c "$$SETUP_SCRIPT"

data: setup ## Build the six-domain corpus (fetched once, then cached) [ARGS=--full]
	@$(GATEBENCH) data build --preset six_domains

ablation: setup ## Compare a variant with the baseline: VARIANT=g1_headwise [RECIPE=quick] [SEEDS=3] [ARGS=...]
	@$(GATEBENCH) ablation --variant "$$VARIANT" $${RECIPE:+--recipe "$$RECIPE"} $${SEEDS:+--seeds "$$SEEDS"}

sink-lab: setup ## Grow an attention sink and see which gates remove it: Table 4 of the paper, small [SEEDS=3] [ARGS=...]
	@$(GATEBENCH) sweep sinks $${SEEDS:+--seeds "$$SEEDS"}

grid: setup ## Train what is missing of a study: [STUDY=full_grid] [ON=slurm] [PARALLEL=8] [SEEDS=3] [ARGS="--profile cpu"]
	@$(GATEBENCH) sweep "$$STUDY" $${ON:+--on "$$ON"} $${PARALLEL:+--max-parallel "$$PARALLEL"} \
		$${SEEDS:+--seeds "$$SEEDS"}

status: setup ## How the runs of a study stand: [STUDY=full_grid] [SEEDS=3] [ARGS=--json]
	@$(GATEBENCH) status "$$STUDY" $${SEEDS:+--seeds "$$SEEDS"}

tables: setup ## Make tables, figures and report.html of every study with results again [STUDIES="table1 sinks"] [ARGS=...]
	@set -f; $(GATEBENCH) tables $$STUDIES

claims: setup ## The paper's claims and what the results here say about each [ARGS=--json]
	@$(GATEBENCH) claims

list: setup ## List the variants [ARGS="--table 1"]
	@$(GATEBENCH) list

show: setup ## Show one variant, its equation, cost and the paper's numbers: VARIANT=g1_headwise
	@$(GATEBENCH) show "$$VARIANT"

bench: setup ## Measure training speed on this machine [ARGS=...]
	@$(GATEBENCH) speed

test: setup lint types ## Lint, types and every test, slow ones too [WORKERS=2] [ARGS="-k gates"]
	@$(PYTEST) -n "$$WORKERS" --maxprocesses 8 --dist worksteal -m "not cluster"

test-fast: setup ## The tests that are not slow, nothing else [WORKERS=2] [ARGS="-k gates"]
	@$(PYTEST) -n "$$WORKERS" --maxprocesses 8 --dist worksteal -m "not slow and not cluster"

test-cluster: setup ## Studies on a real SLURM, started here: as root on Debian or Ubuntu, ten minutes or more
	@command -v slurmctld >/dev/null || tests/cluster/install.sh
	@$(PYTEST) -m cluster -s tests/cluster

lint: setup ## Check style and format (ruff)
	@"$$VENV"/bin/ruff check .
	@"$$VENV"/bin/ruff format --check .

types: setup ## Check types (mypy)
	@"$$VENV"/bin/mypy

format: setup ## Rewrite the code in the project's format (ruff)
	@"$$VENV"/bin/ruff check --fix-only --quiet .
	@"$$VENV"/bin/ruff format .

clean: ## Remove caches and build leftovers; keeps .venv, results and the corpus
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis htmlcov .coverage *.egg-info
	@find . \( -path "./$$VENV" -o -path ./.git -o -path ./results \) -prune -o -type d -name __pycache__ -exec rm -rf {} +

clean-runs: ## Delete every run directory under results/runs: CONFIRM=yes
	@if [ "$$CONFIRM" = yes ]; then rm -rf results/runs; echo "deleted results/runs"; \
	elif [ -d results/runs ]; then \
		echo "results/runs holds $$(find results/runs -name config.yaml | wc -l | tr -d ' ') runs, $$(du -sh results/runs | cut -f1):" \
			"make clean-runs CONFIRM=yes deletes them" >&2; exit 2; \
	else echo "results/runs does not exist: nothing to delete"; fi
