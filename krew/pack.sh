#!/bin/sh
# Packs the program for krew, and writes the manifest for all existing archives of this version.
#   krew/pack.sh BINARY ARCH OUTPUT URL
set -eu
binary=$1 arch=$2 output=$3 url=$4
here=$(dirname "$0")
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$here/../Cargo.toml" | head -n 1)
mkdir -p "$output"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp "$binary" "$folder/confrev"
cp "$here/../LICENSE" "$folder/LICENSE"
chmod 755 "$folder/confrev"
chmod 644 "$folder/LICENSE"
# The archive does not depend on the time or the place of the build.
tar --create --format=ustar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@${SOURCE_DATE_EPOCH:-0}" \
    --directory "$folder" LICENSE confrev | gzip --no-name --best > "$output/confrev-v$version-linux-$arch.tar.gz"

script="s|@URL@|$url|; s|@VERSION@|$version|"
for archive in "$output/confrev-v$version"-*.tar.gz; do
    platform=${archive##*/confrev-v"$version"-}
    platform=${platform%.tar.gz}
    digest=$(sha256sum "$archive")
    script="$script; s|@$platform@|${digest%% *}|"
done
# A platform without a known digest is removed.
sed "/^#/d; $script" "$here/confrev.yaml" | awk '
    function flush() { if (block !~ /@/) printf "%s", block; block = "" }
    /^    - selector:/ { flush(); open = 1 }
    { if (open) block = block $0 "\n"; else print }
    END { flush() }' > "$output/confrev.yaml"
