# A static binary on an empty base: the image contains only confrev, so only confrev needs patches.
#   docker build -t confrev:0.1.0 .
# `make image` makes an equal image without a container engine; a test compares the two.

# The toolchain of rust-toolchain.toml. That file is not copied: rustup would install clippy and rustfmt too. A tag can
# move. To pin the base, pass its digest: --build-arg RUST_IMAGE=rust:1.95.0-alpine@sha256:…
ARG RUST_IMAGE=rust:1.95.0-alpine
FROM ${RUST_IMAGE} AS build
# The C compiler and assembler that `ring` needs, and the linker, in the versions of the base's release. They are not pinned:
# two builds with different C compilers may differ in the code of `ring`.
RUN apk add --no-cache build-base lld
WORKDIR /confrev
COPY Cargo.toml Cargo.lock ./
COPY core core
COPY schema schema
COPY world world
COPY src src
# Members of the workspace: cargo reads their manifests, but does not build them.
COPY bench bench
COPY image image
COPY tests/argocd tests/argocd
COPY tests/controlplane tests/controlplane
COPY tests/properties tests/properties
COPY tests/support tests/support
# Alpine's target is musl, linked statically. The binary contains no path of this stage, so that two builds with the same
# compilers are equal. Relocations are packed: a position-independent binary has half a megabyte of them. LLD links functions
# with equal code once.
ENV RUSTFLAGS="-C target-feature=+crt-static -C link-arg=-Wl,-z,pack-relative-relocs -C link-arg=-fuse-ld=lld -C link-arg=-Wl,--icf=all --remap-path-prefix=/confrev=. --remap-path-prefix=/usr/local/cargo=cargo"
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/confrev/target \
    cargo build --release --locked --bin confrev --no-default-features && cp target/release/confrev /usr/local/bin/confrev

FROM scratch
COPY --from=build /usr/local/bin/confrev /confrev
# A number: without a passwd file, the kubelet can check only a number for runAsNonRoot.
USER 65532:65532
EXPOSE 8443 8080
ENTRYPOINT ["/confrev"]
CMD ["serve"]
