#!/bin/sh
# The peers of benchmarks.loaders and benchmarks.mixtures, in an environment of their own: their requirements differ from
# those of datapipe (MosaicML Streaming wants an older NumPy). Run from anywhere:
#
#     benchmarks/peers/install.sh [PYTHON]      PYTHON is the repository's own by default
#
# A peer that cannot be installed is left out here and reported as missing by the benchmark.
# FFCV is compiled: it needs a C++ compiler and Debian's libopencv-dev, libturbojpeg0-dev and
# pkg-config. SPDL needs FFmpeg's libraries (Debian: ffmpeg).
set -eu
cd "$(dirname "$0")/../.."
python=${1:-.venv/bin/python}
home=build/peers/env
bin=$home/bin

install() {
    # The same torch for all, so that it cannot be the difference.
    "$bin/python" -m pip install --quiet --disable-pip-version-check \
        --constraint constraints.txt "$@"
}

"$python" -m venv "$home"
# setuptools and wheel: FFCV's build wants them.
install setuptools wheel torch webdataset pillow simplejpeg

missing=
for peer in mosaicml-streaming==0.13.0 megatron-energon==7.4.1 litdata==0.2.76 nvidia-dali-cuda130 spdl==0.8.0 ffcv==1.0.2; do
    install "$peer" || missing="$missing $peer"
done
# Each was installed alone; what a later one replaced for an earlier one shows here.
"$bin/python" -m pip check || true

if [ -n "$missing" ]; then
    echo "not installed:$missing" >&2
    exit 1
fi
