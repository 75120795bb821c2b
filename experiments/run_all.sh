#!/usr/bin/env bash
# Static, dynamic and pooled micro-batches on one sample stream, then analysis and report.
# Arguments are passed on, for example: experiments/run_all.sh --dataset rows.tsv --steps 300
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-}
if [ -z "$python" ]; then python=$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3); fi
exec "$python" -m experiments.ddp --arms static,dynamic,pooled "$@"
