#!/usr/bin/env bash
# Holds what kustomize builds to checkov's rules, offline: k8s/checkov.sh [CHECKOV]. Needs kubectl on PATH.
set -euo pipefail
cd "$(dirname "$0")/.."
checkov=$(command -v "${1:-checkov}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for build in overlays/local overlays/gpu served/deployment served/kserve; do
  kubectl kustomize "k8s/$build" >"$folder/${build//\//-}.yaml"
done
"$checkov" --directory "$folder" --config-file k8s/.checkov.yaml
