#!/usr/bin/env bash
# B/G samples for every rank: what the other schedules are compared with.
# Arguments are passed on, for example: experiments/run_static.sh --out outputs/static --steps 300
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-}
if [ -z "$python" ]; then python=$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3); fi
exec "$python" -m experiments.ddp --mode static "$@"
