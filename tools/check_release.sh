#!/usr/bin/env bash
# Builds the distribution and checks it as users get it, outside of the repository: its files, tests
# with the lowest dependencies that it allows, and the tutorial after a plain install.
#
#   PYTHONS="python3.11 python3.13" tools/check_release.sh
#
# The built files stay in build/dist/. Environments take about 6 GB and are removed at the end.
set -euo pipefail
cd "$(dirname "$0")/.."
read -ra pythons <<<"${PYTHONS:-python3}"
dist=$PWD/build/dist
outside=$(mktemp -d)
trap 'rm -rf "$outside"' EXIT
unset PYTHONPATH  # or the repository would be imported
say() { printf '\n== %s\n' "$*"; }

say "build"
"${pythons[0]}" -m venv "$outside/tools"
"$outside/tools/bin/pip" install --quiet build twine uv
rm -rf "$dist" build/lib build/bdist.*  # setuptools would pack files that are gone
"$outside/tools/bin/python" -m build --outdir "$dist" . >"$outside/build.log" || {
    cat "$outside/build.log"
    exit 1
}
"$outside/tools/bin/twine" check --strict "$dist"/*
wheel=$(echo "$dist"/*.whl)

say "the wheel holds the package, and nothing else"
diff <(git ls-files datapipe | LC_ALL=C sort) <(
    "${pythons[0]}" -m zipfile --list "$wheel" | awk '/^datapipe\// { print $1 }' | LC_ALL=C sort
)
strangers=$("${pythons[0]}" -m zipfile --list "$wheel" | awk 'NR > 1 { print $1 }' |
    grep -vE '^(datapipe|datapipe_vlm-[0-9.]+\.dist-info)/' || true)
[ -z "$strangers" ] || { echo "$strangers"; exit 1; }

# The tests and tools without the package beside them.
mkdir "$outside/docs"
cp -r tests tools pyproject.toml "$outside"
cp docs/tutorial.md "$outside/docs"
cd "$outside"

say "tests with the lowest dependencies"
uv() { "$outside/tools/bin/uv" "$@"; }
uv venv --quiet --python "${pythons[0]}" lowest
uv pip install --quiet --python lowest --resolution lowest-direct --requirements pyproject.toml
uv pip freeze --quiet --python lowest >lowest.txt
uv pip install --quiet --python lowest --no-deps "$wheel"
uv pip install --quiet --python lowest --constraints lowest.txt hypothesis pandas pytest scikit-image webdataset
# Without the state of a video dataset: its frames have other bytes where another Pillow writes them.
lowest/bin/python -m pytest -m "not campaign and not measuring" -k "not max_frames" \
    tests/test_public.py tests/cli/test_command.py tests/index/test_imageinfo.py \
    tests/pack/test_pack.py tests/pack/test_conversations.py tests/loader/test_batches.py \
    tests/loader/test_tokens.py tests/loader/test_arrays.py tests/loader/test_webdataset_source.py \
    tests/curate/test_copied.py tests/cli/test_curate.py tests/golden

for python in "${pythons[@]}"; do
    say "the tutorial with the newest dependencies, $("$python" --version)"
    uv venv --quiet --clear --python "$python" clean
    uv pip install --quiet --python clean "$wheel[demo]" pytest
    clean/bin/datapipe --version
    uv pip freeze --quiet --python clean | grep -E '^(datapipe|numpy|torch|typer|pillow|pyarrow)'
    clean/bin/python -m pytest --noconftest tests/docs/test_tutorial.py
done
say "the release can be uploaded: $dist"
