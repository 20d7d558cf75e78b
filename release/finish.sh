#!/bin/sh
# Writes what describes the files of a release: the provenance statement, the checksums, and the signatures.
#   release/finish.sh FOLDER
# KEY is the file of a private key (EC or RSA, in PEM), or RELEASE_SIGNING_KEY is its content. Without a key, nothing is
# signed. The public key is written beside the folder, for tests; users get it from another place than the release.
set -eu
folder=$1
cd "$(dirname "$0")/.."
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
statement=$folder/confrev-v$version.provenance.json
rm -f "$statement" "$folder"/*.intoto.jsonl "$folder"/SHA256SUMS*
"${CARGO:-cargo}" run --quiet --locked -p confrev-image -- provenance --folder "$folder" --output "$statement"

private=$(mktemp)
trap 'rm -f "$private"' EXIT
if [ -n "${KEY:-}" ]; then
    cat "$KEY" > "$private"
else
    printf '%s\n' "${RELEASE_SIGNING_KEY:-}" > "$private"
fi
sign() { openssl dgst -sha256 -sign "$private" | base64 | tr -d '\n'; }

if grep -q . "$private"; then
    # A DSSE envelope. The signature covers the type and the statement, each with its length.
    type=application/vnd.in-toto+json
    signature=$({ printf 'DSSEv1 %d %s %d ' "${#type}" "$type" "$(wc -c < "$statement")"; cat "$statement"; } | sign)
    keyid=$(openssl pkey -in "$private" -pubout -outform DER | sha256sum)
    printf '{"payloadType":"%s","payload":"%s","signatures":[{"keyid":"%s","sig":"%s"}]}\n' \
        "$type" "$(base64 < "$statement" | tr -d '\n')" "${keyid%% *}" "$signature" \
        > "${statement%.provenance.json}.intoto.jsonl"
fi
sums=$(cd "$folder" && sha256sum -- *)
printf '%s\n' "$sums" > "$folder/SHA256SUMS"
if grep -q . "$private"; then
    sign < "$folder/SHA256SUMS" > "$folder/SHA256SUMS.sig"
    openssl pkey -in "$private" -pubout -out "$folder.pub"
fi
