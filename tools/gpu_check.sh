#!/usr/bin/env bash
# Everything that only a machine with a CUDA device can show, in one command, within 8 minutes and without a network:
# builds in place, runs the tests on backend cuda, the demo, and a table of accel beside native CUDA. Every part runs,
# even after one that failed. Figures come last.
#
#   tools/gpu_check.sh          from any folder; needs python3 with torch and CUDA, cmake, ninja, a C++ compiler
#
# Nothing is installed: PYTHONPATH makes the tree importable, and its egg-info makes `import torch` alone find it.
#
# Environment
#   PYTHON              interpreter (default python3)
#   OUT                 folder that the JSON files and the logs are copied to (default: they stay in out/gpu_check)
#   GPU_CHECK_SECONDS   seconds for everything (default 470)
#   GPU_CHECK_BACKEND   backend that is checked (default cuda); cpu tries this script out on a machine without a GPU
#   GPU_CHECK_TESTS     what pytest is given (default: tests without tests/test_opinfo.py, and that one if time is left)
#
# Exit status: 0; 1 if a part failed or ran out of time; 2 without a CUDA device.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
python=${PYTHON:-python3}
backend=${GPU_CHECK_BACKEND:-cuda}
end=$((SECONDS + ${GPU_CHECK_SECONDS:-470}))
folder=$PWD/out/gpu_check

has() { # MODULE: the interpreter can import it
  TORCH_DEVICE_BACKEND_AUTOLOAD=0 "$python" -c "import $1" 2>/dev/null
}

missing_tools() { # What a build needs and this machine lacks, one a line
  local tool
  for tool in cmake ninja; do
    command -v "$tool" >/dev/null || has "$tool" || echo "the program $tool (or its Python wheel)"
  done
  command -v "${CXX:-g++}" >/dev/null || command -v c++ >/dev/null || echo "a C++ compiler (g++, or CXX)"
  "$python" - <<'END'
import sysconfig
from pathlib import Path

if not Path(sysconfig.get_path("include"), "Python.h").is_file():
    print("Python.h in", sysconfig.get_path("include"), "(the package python3-dev)")
try:
    import setuptools
except ImportError:
    print("setuptools >= 77")
else:
    if int(setuptools.__version__.split(".")[0]) < 77:
        print("setuptools >= 77, got", setuptools.__version__)
END
}

build() {
  local missing
  missing=$(missing_tools)
  if [[ -n $missing ]]; then
    echo "gpu_check: a build needs what this machine lacks:"
    echo "${missing//$'\n'/$'\n'  }"
    return 1
  fi
  "$python" setup.py -q egg_info build_ext --inplace && "$python" -m torch_accel info
}

tests() {
  # An empty addopts: a machine without all plugins must not stumble over options of theirs in pyproject.toml.
  local options=(-o addopts= -q -ra -p no:cacheprovider)
  has xdist && options+=(-n 4)
  if has pytest; then
    "$python" -m pytest "${options[@]}" "$@"
  else
    echo "gpu_check: no pytest in $python: only a few checks instead of the tests"
    "$python" tools/gpu_smoke.py
  fi
}

table() {
  local native=$backend rounds=11
  [[ $backend == cpu ]] && rounds=1
  "$python" benchmarks/gpu_table.py --devices "$native,accel" --rounds "$rounds" --seconds 60 --json "$folder/table.json"
}

demo() {
  "$python" -m torch_accel demo --backend "$backend" --json "$folder/demo.json" --svg "$folder/demo.svg"
}

if [[ ${1:-} == --part ]]; then # `timeout` runs programs only, so each part is another run of this one
  case $2 in
    build) build ;;
    tests | opinfo) tests "${@:3}" ;;
    demo) demo ;;
    table) table ;;
  esac
  exit
fi

if [[ $backend == cuda ]] && ! TORCH_DEVICE_BACKEND_AUTOLOAD=0 "$python" -c \
  'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
  echo "gpu_check: expected a CUDA device and a torch for it in $python, got none (run it where there is one)" >&2
  exit 2
fi

rm -rf "$folder" && mkdir -p "$folder" || exit
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
export TORCH_ACCEL_BACKEND=$backend

names=() states=() times=()
failed=0

part() { # NAME LIMIT RESERVE [ARGUMENT...]: run a part for at most LIMIT seconds, and leave RESERVE to those after it
  local name=$1 limit=$2 left=$((end - SECONDS - $3)) start=$SECONDS status
  shift 3
  ((left < limit)) && limit=$left
  printf '\n=== %s (at most %d s)\n' "$name" "$((limit > 0 ? limit : 0))"
  if ((limit < 5)); then
    status=124
  else
    # SIGINT first: pytest then still says what has failed so far.
    timeout -s INT -k 8 "$limit" "$BASH" tools/gpu_check.sh --part "$name" "$@" 2>&1 | tee "$folder/$name.log"
    status=${PIPESTATUS[0]}
  fi
  names+=("$name") times+=($((SECONDS - start)))
  case $status in
    0) states+=(ok) ;;
    124 | 137)
      states+=("out of time")
      [[ $name == opinfo ]] || failed=1 # that one only fills the time that is left
      ;;
    *) states+=("failed, status $status") failed=1 ;;
  esac
}

read -ra chosen <<<"${GPU_CHECK_TESTS:-tests --ignore=tests/test_opinfo.py}"
part build 150 300
part tests 200 150 "${chosen[@]}"
part demo 80 70
part table 80 0
if [[ -z ${GPU_CHECK_TESTS:-} ]] && ((end - SECONDS > 60)) && has expecttest && has pytest; then
  part opinfo 300 5 tests/test_opinfo.py
fi

# One summary for programs, and one to read.
{
  printf '{"backend": "%s", "passed": %s, "parts": {' "$backend" "$([[ $failed == 0 ]] && echo true || echo false)"
  for i in "${!names[@]}"; do
    printf '%s"%s": {"state": "%s", "seconds": %d}' "$([[ $i == 0 ]] || echo ', ')" "${names[i]}" "${states[i]}" "${times[i]}"
  done
  printf '}}\n'
} >"$folder/summary.json"

printf '\n=== figures\n'
grep -E '^(loss|tokens/s|fallbacks|largest|OK|FAILED)' "$folder/demo.log" 2>/dev/null
echo
cat "$folder/table.log" 2>/dev/null
echo
for i in "${!names[@]}"; do
  last=
  [[ ${names[i]} == tests || ${names[i]} == opinfo ]] && last=$(tail -n 1 "$folder/${names[i]}.log" 2>/dev/null)
  printf '%-8s %4d s  %s  %s\n' "${names[i]}" "${times[i]}" "${states[i]}" "$last"
done
if [[ -n ${OUT:-} ]]; then
  mkdir -p "$OUT" && cp "$folder"/*.json "$folder"/*.log "$OUT"
fi
exit $failed
