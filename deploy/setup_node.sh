#!/usr/bin/env bash
# Sets up a node, and updates it: checks the driver, makes ~/venv with Python 3.11, installs raybio with the versions of
# constraints.txt, and writes the environment of Ray and its jobs.
#   setup_node.sh BUILD [NAME=VALUE ...]    BUILD: torch's, such as cu126 or cpu; the rest is exported
# The machine's own python3 may be of any version: uv finds Python 3.11 or downloads it.
set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
uv_version=0.13.9

refuse() {
  echo "setup_node.sh: $1" >&2
  exit 1
}

build="${1:-}"
shift || true
for variable in "$@"; do
  [[ $variable =~ ^[A-Z][A-Z0-9_]*=. ]] || refuse "got '$variable', want NAME=VALUE"
  [[ $variable != *YOUR-* ]] || refuse "$variable is an example. Write your own value into the cluster file."
done
bash "$repository/deploy/check_driver.sh" "$build"

export PATH="$HOME/.local/bin:$PATH"
if ! command -v uv >/dev/null; then
  # pipefail: a download that fails is no empty script that succeeds.
  curl -LsSf --retry 3 --max-time 120 "https://astral.sh/uv/$uv_version/install.sh" |
    env UV_INSTALL_DIR="$HOME/.local/bin" UV_NO_MODIFY_PATH=1 sh ||
    refuse "uv is not there and cannot be downloaded from astral.sh. Open the way to it, or install uv into ~/.local/bin (pip install uv)."
fi

is_python_3_11() { "$HOME/venv/bin/python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; }
is_python_3_11 || uv venv --quiet --clear --python 3.11 "$HOME/venv" ||
  refuse "no Python 3.11 for ~/venv; the reason stands above (the machine's own: $(python3 --version 2>&1 || true)). Install python3.11, or open the way to github.com, from where uv takes it."

extra=gpu
if [[ $build == cpu ]]; then extra=cpu; fi
rm -rf "$repository/build"
# Whatever uv is there: raybio itself is built anew, since its code changes between versions.
uv pip install --quiet --python "$HOME/venv/bin/python" --torch-backend "$build" --reinstall-package raybio \
  --constraints "$repository/constraints.txt" "$repository[$extra,methods,aws]" ||
  refuse "raybio's packages cannot be installed; the reason stands above."

{
  echo 'source ~/venv/bin/activate; export PATH="$PATH:$HOME/.local/bin"'
  echo 'export RAY_AUTH_MODE=token'
  for variable in "$@"; do
    printf 'export %s=%q\n' "${variable%%=*}" "${variable#*=}"
  done
} >"$HOME/.raybio_environment"
# At the top: the rest of a .bashrc is for interactive shells, and Ray's are not always.
if ! grep -qs raybio_environment "$HOME/.bashrc"; then
  { echo 'source ~/.raybio_environment'; cat "$HOME/.bashrc" 2>/dev/null || true; } >"$HOME/.bashrc.new"
  mv "$HOME/.bashrc.new" "$HOME/.bashrc"
fi
echo "$("$HOME/venv/bin/python" --version) and raybio are in ~/venv"
