# A static binary on an empty base: nothing in the image but confrev, nothing to patch but confrev.
#   docker build -t confrev:0.1.0 .
# `make image` makes the same without a container engine; a test keeps the two in step.

# The toolchain of rust-toolchain.toml. That file stays outside, or rustup would fetch clippy and rustfmt too. A tag can
# move: to pin the base, pass its digest, --build-arg RUST_IMAGE=rust:1.95.0-alpine@sha256:…
ARG RUST_IMAGE=rust:1.95.0-alpine
FROM ${RUST_IMAGE} AS build
# The C compiler and assembler that `ring` needs, in the version of the base's release. It is not pinned: two builds with
# different C compilers may differ in the code of `ring`.
RUN apk add --no-cache build-base
WORKDIR /confrev
COPY Cargo.toml Cargo.lock ./
COPY core core
COPY src src
# Members of the workspace: cargo reads their manifests, and builds none of them.
COPY bench bench
COPY image image
COPY tests/controlplane tests/controlplane
# Alpine's target is musl, linked statically. No path of this stage is left in the binary, so that two builds with the
# same compilers are equal.
# Relocations are packed: a binary that may lie anywhere has half a megabyte of them.
ENV RUSTFLAGS="-C target-feature=+crt-static -C link-arg=-Wl,-z,pack-relative-relocs --remap-path-prefix=/confrev=. --remap-path-prefix=/usr/local/cargo=cargo"
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/confrev/target \
    cargo build --release --locked --bin confrev && cp target/release/confrev /usr/local/bin/confrev

FROM scratch
COPY --from=build /usr/local/bin/confrev /confrev
# By number: the kubelet can tell that it is not root (runAsNonRoot) without a passwd file.
USER 65532:65532
EXPOSE 8443 8080
ENTRYPOINT ["/confrev"]
CMD ["serve"]
