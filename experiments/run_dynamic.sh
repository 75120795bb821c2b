#!/usr/bin/env bash
# Counts decided at every step; every rank takes them from its own queue.
# Arguments are passed on, for example: experiments/run_dynamic.sh --out outputs/dynamic --steps 300
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-}
if [ -z "$python" ]; then python=$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3); fi
exec "$python" -m experiments.ddp --mode dynamic "$@"
