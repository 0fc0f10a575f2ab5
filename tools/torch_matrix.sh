#!/usr/bin/env bash
# Shows that one source tree serves several torch versions: for each version a virtual environment, a wheel built in
# it and installed into it, and the smoke tests on the installed package.
#
#   tools/torch_matrix.sh [VERSION...]     default: 2.11.0 2.13.0; PYTHON=python3.12 chooses the interpreter
#
# Everything is kept in build/matrix/VERSION/ (log: all output), so a second run is short. Exits 1 if a version failed.
set -uo pipefail
cd "$(dirname "$0")/.."
root=$PWD
python=${PYTHON:-python3}
(($#)) || set -- 2.11.0 2.13.0

prepare() { # a virtual environment with torch $version; what the development set pins beside torch and its build tools
  [[ -x $venv/bin/python ]] || "$python" -m venv "$venv" || return
  "$venv/bin/python" -m pip install "torch==$version" "setuptools>=77" || return
  "$venv/bin/python" -m pip install -r <(grep -vE '^(torch|setuptools)==' requirements-dev.txt)
}

build() {
  rm -rf "$folder/wheel"
  TORCH_ACCEL_BUILD_DIR=$folder/build "$venv/bin/python" -m pip wheel --no-build-isolation --no-deps \
    -w "$folder/wheel" . || return
  "$venv/bin/python" -m pip install --no-deps --force-reinstall "$folder"/wheel/*.whl
}

smoke() ( # on a copy of the tests, outside the tree: beside the sources Python would import those
  rm -rf "$folder/run" && mkdir "$folder/run" && cp -r "$root/tests" "$root/pyproject.toml" "$folder/run" || exit
  cd "$folder/run" && "$venv/bin/python" -m pytest -m smoke -q tests
)

results=()
failed=0
for version; do
  folder=$root/build/matrix/$version
  venv=$folder/venv
  mkdir -p "$folder"
  built=failed smoked=-
  echo "torch $version: log in build/matrix/$version/log"
  if { prepare && build; } >"$folder/log" 2>&1; then
    built=ok smoked=failed
    smoke >>"$folder/log" 2>&1 && smoked=ok
  fi
  if [[ $smoked != ok ]]; then
    failed=1
    tail -n 20 "$folder/log"
  fi
  torch=$("$venv/bin/python" -c 'from importlib.metadata import version; print(version("torch"))' 2>/dev/null)
  results+=("${torch:-$version} $built $smoked $(tail -n 1 "$folder/log")")
done

printf '\n%-16s %-8s %-8s %s\n' torch build smoke "last line of the log"
for result in "${results[@]}"; do
  read -r torch built smoked last <<<"$result"
  printf '%-16s %-8s %-8s %s\n' "$torch" "$built" "$smoked" "$last"
done
exit $failed
