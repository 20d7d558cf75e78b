#!/bin/sh
# Builds the files of a release in a folder. `make release` calls it, and sets these variables:
#   DIST       the folder
#   TARGETS    the targets of the compiler
#   COMPLETE   if not empty, a target that cannot be compiled is an error; otherwise it is left out
#   REPOSITORY the repository of the image in the manifests; URL the address of the archives in the krew manifest
#   KEY        the file of the private key; if empty, nothing is signed
set -eu
cd "$(dirname "$0")/.."
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
name=$DIST/confrev-v$version
if [ -n "$(git status --porcelain --untracked-files=no)" ]; then
    echo "uncommitted changes: a release is built from a commit" >&2
    exit 1
fi
mkdir -p "$DIST"
rm -f "$DIST"/confrev-* "$DIST"/confrev.yaml "$DIST"/SHA256SUMS*

images=
for target in $TARGETS; do
    case $target in
        x86_64-*) arch=amd64 ;;
        aarch64-*) arch=arm64 ;;
        *) echo "unknown target $target" >&2; exit 2 ;;
    esac
    if ! make --no-print-directory toolchain IMAGE_TARGET="$target"; then
        [ -z "$COMPLETE" ] || exit 1
        echo "no release for $target: its standard library or its C compiler is missing" >&2
        continue
    fi
    make --no-print-directory krew IMAGE_TARGET="$target" KREW="$DIST" KREW_URL="$URL"
    cp target/image/confrev.tar "$name-linux-$arch.image.tar"
    cp target/image/confrev.cdx.json "$name-linux-$arch.cdx.json"
    images="$images $name-linux-$arch.image.tar"
done
[ -n "$images" ] || exit 1

# One image for all architectures. Its digest pins the image in the manifests.
# shellcheck disable=SC2086 # a list of files without spaces in their names
digest=$("${CARGO:-cargo}" run --quiet --locked -p confrev-image -- join --version "$version" --output "$name.image.tar" $images)
make --no-print-directory manifests MANIFESTS="$DIST" IMAGE_REPOSITORY="$REPOSITORY" IMAGE_DIGEST="$digest"
for manifest in self-signed cert-manager carry; do
    mv "$DIST/$manifest.yaml" "$name-$manifest.yaml"
done

# Like `helm package`, but with the time of the commit in place of the present time.
tar --create --format=ustar --sort=name --owner=0 --group=0 --numeric-owner --mode=go+u,go-w \
    --mtime="@$SOURCE_DATE_EPOCH" --exclude=.helmignore --directory charts confrev \
    | gzip --no-name --best > "$DIST/confrev-$version.tgz"

release/finish.sh "$DIST"
