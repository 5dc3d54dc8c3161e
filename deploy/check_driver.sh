#!/usr/bin/env bash
# Checks that NVIDIA's driver runs a build of torch, before gigabytes are installed: check_driver.sh BUILD
# BUILD is cpu or a CUDA build such as cu126. A machine without an NVIDIA device passes: torch runs on its CPUs.
set -euo pipefail

refuse() {
  echo "check_driver.sh: $1" >&2
  exit 1
}

build="${1:-}"
# The oldest Linux driver of each CUDA release, minor versions included (NVIDIA, CUDA compatibility).
case "$build" in
  cpu) exit 0 ;;
  cu12[0-9]) wanted=525.60.13 ;;
  cu13[0-9]) wanted=580.65.06 ;;
  *) refuse "got build '$build', want cpu, or one of CUDA 12 or 13 such as cu126 or cu130" ;;
esac

has_device() { grep -qsix 0x10de "${PCI_DEVICES:-/sys/bus/pci/devices}"/*/vendor; }
image="Take a machine image that has the driver (deploy/README.md names one for each cloud), or install it"

if ! command -v nvidia-smi >/dev/null; then
  has_device && refuse "this machine has an NVIDIA device and no driver (nvidia-smi), want $wanted or newer for torch's $build. $image."
  echo "no NVIDIA device: torch runs on the CPUs of $(hostname)"
  exit 0
fi
answer=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>&1) ||
  refuse "NVIDIA's driver does not answer (nvidia-smi: ${answer%%$'\n'*}), want $wanted or newer for torch's $build. $image; after an installation, reboot."
found="${answer%%$'\n'*}"
[[ $found =~ ^[0-9]+(\.[0-9]+)+$ ]] || refuse "nvidia-smi reports the driver '$found', want a version such as $wanted. $image."
if [[ $(printf '%s\n' "$wanted" "$found" | sort -V | sed -n 1p) != "$wanted" ]]; then
  older=""
  [[ $build == cu13* ]] && older=", or name an older build: cu126 runs from driver 525.60.13 on"
  refuse "driver $found found, want $wanted or newer for torch's $build. $image$older."
fi
echo "driver $found runs torch's $build"
