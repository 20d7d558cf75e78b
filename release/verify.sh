#!/bin/sh
# Verifies the files of a release: the signature of the checksums, and all files by their checksums.
#   release/verify.sh FOLDER PUBLIC_KEY
set -eu
folder=$1 key=$2
signature=$(mktemp)
trap 'rm -f "$signature"' EXIT
base64 --decode "$folder/SHA256SUMS.sig" > "$signature"
openssl dgst -sha256 -verify "$key" -signature "$signature" "$folder/SHA256SUMS" >&2
cd "$folder"
sha256sum --check --strict --quiet SHA256SUMS
