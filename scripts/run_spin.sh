#!/bin/sh
# Self-play fine-tuning on a file of questions and answers.
# Usage: scripts/run_spin.sh DATA.jsonl [MODEL] [key=value ...]
set -eu
if [ $# -lt 1 ]; then
    echo "usage: $0 DATA.jsonl [MODEL] [key=value ...]" >&2
    echo 'DATA.jsonl holds one {"question": ..., "answer": ...} a line' >&2
    exit 2
fi
data=$1
shift
model=
case ${1:-} in
    "" | -* | *=*) ;;
    *)
        model="model.model_name_or_path=$1"
        shift
        ;;
esac
configs=$(dirname "$0")/../configs
exec "${PYTHON:-python}" -m mrlm train --config "$configs/spin_gsm8k.yaml" "data.dataset=$data" \
    ${model:+"$model"} "$@"
