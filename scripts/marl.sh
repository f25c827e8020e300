#!/bin/sh
# Train with a multi-agent algorithm on its own config, which runs offline on the embedded model:
#   scripts/marl.sh magrpo
#   scripts/marl.sh mappo stages.1.training.num_iterations=5 --output outputs/try
# What follows the name goes to `mrlm train`. Without a name: which algorithms there are.
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
python=${PYTHON:-$root/.venv/bin/python}
command -v "$python" >/dev/null || python=python3

names() {
  for file in "$root"/src/mrlm/algorithms/*.py; do
    name=$(basename "$file" .py)
    [ ! -f "$root/configs/$name.yaml" ] || printf ' %s' "$name"
  done
}

if [ $# -eq 0 ]; then
  echo "usage: scripts/marl.sh ALGORITHM [key=value ...]; the algorithms are$(names)" >&2
  exit 2
fi
algorithm=$1
shift
case " $(names) " in
  *" $algorithm "*) ;;
  *)
    echo "scripts/marl.sh: there is no configs/$algorithm.yaml; the algorithms are$(names)" >&2
    exit 2
    ;;
esac
exec "$python" -m mrlm train --config "$root/configs/$algorithm.yaml" "$@"
