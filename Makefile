# The text after `##` describes a target; `make help` lists all targets.
CARGO ?= cargo
CONTROLPLANE = $(CARGO) run --quiet -p confrev-controlplane --bin controlplane --
# The oldest Kubernetes that the tests run on.
OLDEST = 1.34
# The folder that `make manifests` writes to, and the helm that it runs.
MANIFESTS ?= manifests
HELM ?= $$($(CONTROLPLANE) build)/helm
# The image of the rendered manifests, if it is not confrev:VERSION: its repository and its digest (sha256:…).
IMAGE_REPOSITORY ?=
IMAGE_DIGEST ?=
# The API that the policies of `outage: carry` need: without a cluster, helm does not know what the API server serves.
POLICY_API = --api-versions admissionregistration.k8s.io/v1/MutatingAdmissionPolicy
IMAGE_VALUES = $(if $(IMAGE_REPOSITORY),--set-string image.repository=$(IMAGE_REPOSITORY)) \
	$(if $(IMAGE_DIGEST),--set-string image.digest=$(IMAGE_DIGEST))
# The folder that `make image` writes to, and its target: a static binary needs only musl's std.
IMAGE ?= target/image
IMAGE_TARGET ?= $(shell uname -m)-unknown-linux-musl
IMAGE_PROFILE ?= release
# The image serves, so its program has no dashboard. The plugin's archive has one.
IMAGE_FEATURES ?= --no-default-features
IMAGE_BINARY = $(IMAGE)/build/$(IMAGE_TARGET)/$(subst dev,debug,$(IMAGE_PROFILE))/confrev
IMAGE_VARIABLE = $(subst -,_,$(IMAGE_TARGET))
# The C compiler for that target, which is also the linker if the target is another architecture.
IMAGE_ARCH = $(firstword $(subst -, ,$(IMAGE_TARGET)))
IMAGE_CC ?= $(shell if [ $(IMAGE_ARCH) = $$(uname -m) ]; then command -v musl-gcc || echo cc; else \
	command -v $(IMAGE_ARCH)-linux-musl-gcc || command -v $(IMAGE_ARCH)-linux-gnu-gcc; fi)
IMAGE_LINKER = $(if $(filter $(shell uname -m),$(IMAGE_ARCH)),,CARGO_TARGET_$(shell echo $(IMAGE_VARIABLE) | tr a-z A-Z)_LINKER=$(IMAGE_CC))
# The image has the time of the last commit, so that it does not depend on the time of the build.
ifndef SOURCE_DATE_EPOCH
SOURCE_DATE_EPOCH := $(or $(shell git log -1 --format=%ct 2>/dev/null),0)
endif
# Not for compilers: they would recompile everything after each commit.
unexport SOURCE_DATE_EPOCH
# The binary contains no path of this machine. Relocations are packed: a position-independent binary has half a megabyte of
# them. Frame pointers would save as much, with shorter tables for unwinding, but a review would take a tenth longer.
IMAGE_RUSTFLAGS = -C target-feature=+crt-static -C link-arg=-Wl,-z,pack-relative-relocs --remap-path-prefix=$${CARGO_HOME:-$$HOME/.cargo}=cargo \
	--remap-path-prefix=$(CURDIR)=. --remap-path-prefix=$(abspath $(IMAGE))=image

# LLD links functions with equal code once. It is part of the toolchain; where it is missing, the binary is larger.
IMAGE_LLD = $(wildcard $(shell rustc --print sysroot)/lib/rustlib/$(shell rustc -vV | sed -n 's/^host: //p')/bin/gcc-ld)
IMAGE_LINK = $(addprefix -C link-arg=,$(if $(IMAGE_LLD),-fuse-ld=lld -B$(IMAGE_LLD) -Wl$(COMMA)--icf=all))
COMMA = ,

.PHONY: actionlint release test-release release-tools publish toolchain help build attacks demo test test-unit test-oldest test-upgrade test-node older-image nodes compatibility test-waves outages node-packages model model-exhaustive chaos test-install test-image lint deny advisories fmt controlplane manifests image krew plugin docs recording picture pictures dashboard-figures clean instructions fuzz static bench bench-quick bench-large bench-slo bench-parts soak
.DEFAULT_GOAL := help

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build target/release/confrev, and the names under which kubectl finds it
	$(CARGO) build --release --locked
	ln -sf confrev target/release/kubectl-confrev
	ln -sf confrev target/release/kubectl_complete-confrev

# The program is not optimised: the story waits for the control plane, and a release build takes ten minutes more.
DEMO = $${CARGO_TARGET_DIR:-target}/demo
demo: CONTROLPLANE = $(CARGO) run --quiet --profile demo -p confrev-controlplane --bin controlplane --
demo: ## Run the canary story on a real control plane, in under a minute (NODE=real: with real containers; DASHBOARD=1: in a browser too)
	$(CONTROLPLANE) build -- $(CARGO) build --locked --profile demo --package confrev --package confrev-controlplane \
		--bin confrev --bin controlplane --example demo
	CONFREV_BIN=$(DEMO)/confrev CONFREV_DEMO_NODE=$(NODE) CONFREV_DEMO_DASHBOARD=$(DASHBOARD) \
		$(if $(filter real,$(NODE)),$(DEMO)/controlplane nodes --) $(DEMO)/examples/demo

# Without GOGC, control planes, kubectl and helm would spend a fifth of their time on garbage collection.
# Builds the tests and the control plane's binaries side by side.
test: ## Run all tests, two suites at a time, each on a real control plane
	GOGC=200 RUST_TEST_THREADS=4 $(CONTROLPLANE) suites -- $(CARGO) test --locked --workspace

test-unit: ## Run the tests that need no control plane
	$(CARGO) test --locked --package confrev-core --package confrev-world
	$(CARGO) test --locked --lib --test unit --test repository --test model

test-oldest: export CONFREV_KUBERNETES = $(OLDEST)
test-oldest: controlplane ## Run the tests of the promises and of the chart on the oldest Kubernetes that is tested
	RUST_TEST_THREADS=4 $(CONTROLPLANE) run -- $(CARGO) test --locked --test core --test chart

# The build of OLD is stored beside the control plane's binaries, by commit, and is made once.
OLDER = $${CONFREV_CACHE:-$${XDG_CACHE_HOME:-$$HOME/.cache}}/confrev/older-$$commit
test-upgrade: controlplane ## Upgrade from the git revision OLD to this tree (make test-upgrade OLD=...)
	@commit=$$(git rev-parse --verify --quiet "$(OLD)^{commit}") || \
		{ echo 'OLD is not a git revision: run make test-upgrade OLD=<revision>' >&2; exit 2; }; \
	older="$(OLDER)"; \
	if [ ! -x "$$older/confrev" ]; then \
		tree="$$older/tree"; rm -rf "$$tree"; mkdir -p "$$older" && \
		git worktree add --force --detach "$$tree" "$$commit" && \
		(cd "$$tree" && $(CARGO) build --locked --bin confrev --target-dir "$$older/target") && \
		cp "$$tree/manifests/self-signed.yaml" "$$older/manifest.yaml" && \
		mv "$$older/target/debug/confrev" "$$older/confrev"; built=$$?; \
		git worktree remove --force "$$tree"; rm -rf "$$older/target"; [ $$built = 0 ] || exit $$built; \
	fi; \
	CONFREV_OLD_BIN="$$older/confrev" CONFREV_OLD_MANIFEST="$$older/manifest.yaml" \
		$(CONTROLPLANE) run -- $(CARGO) test --locked --test upgrade -- --include-ignored

# The image is built as for other tests, which takes seconds: a release build takes minutes. NODE_PROFILE=release tests the
# image that users get. CONFREV_NODE=optional leaves the tests out where root cannot run containers.
NODE_PROFILE ?= dev
test-node: ## Run the stories on two real nodes, with containerd and the kubelet (root; make node-packages)
	@$(CONTROLPLANE) nodes --check; code=$$?; [ $$code != 3 ] || exit 0; [ $$code = 0 ] || exit $$code; \
		$(MAKE) --no-print-directory older-image && CONFREV_OLDER="$(CURDIR)/target/older" \
		$(MAKE) --no-print-directory nodes SUITE=node

# A story upgrades from NODE_OLD, which a clone without history lacks. Its image is stored beside the control plane's
# binaries, by commit. It is built with the dependencies of this tree's image, which takes seconds.
NODE_OLD ?= HEAD~1
older-image: IMAGE = target/node
older-image:
	@rm -f target/older; commit=$$(git rev-parse --verify --quiet "$(NODE_OLD)^{commit}") || \
		{ echo 'there is no commit $(NODE_OLD) from which to upgrade' >&2; exit 0; }; \
	older="$(OLDER)-image-$(NODE_PROFILE)"; \
	if [ ! -e "$$older/confrev.tar" ]; then \
		tree="$$older/tree"; rm -rf "$$older"; mkdir -p "$$older" && \
		git worktree add --quiet --force --detach "$$tree" "$$commit" && \
		CARGO_TARGET_DIR="$(CURDIR)/target" $(MAKE) --no-print-directory --directory="$$tree" image \
			IMAGE="$(abspath $(IMAGE))" IMAGE_PROFILE=$(NODE_PROFILE) IMAGE_RUSTFLAGS="$(IMAGE_RUSTFLAGS)" && \
		mv "$$tree/charts/confrev" "$$older/chart" && mv "$(IMAGE)/confrev.tar" "$$older/confrev.tar"; built=$$?; \
		git worktree remove --force "$$tree"; [ $$built = 0 ] || exit $$built; \
	fi; \
	mkdir -p target && ln -s "$$older" target/older

# SUITE is a suite that starts real nodes, TESTS selects some of its tests.
nodes:
	$(MAKE) --no-print-directory image IMAGE=target/node IMAGE_PROFILE=$(NODE_PROFILE)
	$(CARGO) test --locked --test $(SUITE) --no-run
	CONFREV_IMAGE=$(abspath target/node) RUST_TEST_THREADS=6 \
		$(CONTROLPLANE) nodes -- $(CARGO) test --locked --test $(SUITE) -- --include-ignored $(TESTS)

# The builds of the suites are stored beside the control plane's binaries. TESTS=kubernetes, argo, helm or kustomize runs one of
# them. FOCUS selects tests: a regular expression for Kubernetes, parts of SUITE/TEST for Argo Rollouts.
compatibility: export CONFREV_FOCUS = $(FOCUS)
compatibility: ## Run the tests of Kubernetes and Argo Rollouts with and without confrev, on two real nodes (root; an hour)
	@$(CONTROLPLANE) nodes --check
	CONFREV_SUITES="$$($(CONTROLPLANE) suites-of-others)" && export CONFREV_SUITES && \
		$(MAKE) --no-print-directory nodes SUITE=compatibility TESTS="$(TESTS) --show-output"

NODE_PACKAGES = busybox-static iproute2 ipset iptables libseccomp-dev mount nftables pkg-config util-linux
node-packages: ## Install the Debian packages that real nodes need (root)
	@missing=$$(for package in $(NODE_PACKAGES); do \
		dpkg-query --show --showformat='$${Status}' $$package 2>/dev/null | grep -q ' installed$$' || echo $$package; done); \
	[ -z "$$missing" ] || { apt-get update --quiet && \
		DEBIAN_FRONTEND=noninteractive apt-get install --quiet --yes --no-install-recommends $$missing; }

# CONFREV_MODEL_SEQUENCES sets the number of sequences, CONFREV_MODEL_SEED selects them.
model: controlplane ## Check the promises with random sequences of events, on a real control plane (minutes)
	$(CONTROLPLANE) run -- $(CARGO) test --locked --test model real -- --ignored --nocapture

# CONFREV_MODEL_PAIRS sets the number of pairs of faults for each scenario; CONFREV_MODEL_SCENARIO selects one scenario.
model-exhaustive: ## Check the promises with each fault at each call of each recorded scenario, and with pairs of faults (hours)
	RUST_BACKTRACE=0 $(CARGO) test --locked --profile model --test model -- --ignored --nocapture \
		exhaustive::every_promise_holds_with_every_fault

# CONFREV_CHAOS_SEED selects the faults; CONFREV_CHAOS_FAULT=words limits them to faults whose names contain the words.
# CONFREV_CHAOS_OUTAGE=carry lets the API server keep the snapshots of writes that no replica answers.
chaos: controlplane ## Check the promises while confrev, the API server, etcd and their connections fail (CONFREV_CHAOS_MINUTES, 15)
	CONFREV_CHAOS_MINUTES=$${CONFREV_CHAOS_MINUTES:-15} $(CARGO) test --locked --test chaos -- --ignored --nocapture

attacks: controlplane ## Measure how long genuine reviews take during each attack of docs/evidence/security.md
	CONFREV_ATTACK_REVIEWS=100 $(CONTROLPLANE) run -- \
		$(CARGO) test --locked --test core genuine_reviews_are_answered_during_attacks -- --nocapture

instructions: ## Count the instructions of a decision, and write the figures that `make test` compares
	CONFREV_FIGURES=write $(CARGO) test --locked --package confrev-instructions -- --nocapture

test-waves: controlplane ## Move 2,000 workloads in 200 namespaces of a group in waves, while confrev is killed (many minutes)
	CONFREV_WAVES_WORKLOADS=2000 CONFREV_WAVES_NAMESPACES=200 CONFREV_WAVES_BY_DEFAULT=1 $(CONTROLPLANE) run -- \
		$(CARGO) test --locked --test storms -- --include-ignored --nocapture --test-threads=1 \
		failed_change_comes_back_in_all_namespaces many_broken_workloads_come_back

outages: controlplane ## Replay three outages with plain Kubernetes, a restarting controller and each strategy (many minutes)
	$(CONTROLPLANE) run -- $(CARGO) test --locked --test storms replays_outages -- --ignored --nocapture

# CONFREV_SOAK_WORKLOADS sets another number of workloads.
soak: controlplane ## Change the ConfigMaps of 1,000 workloads five times a second, and check that nothing grows (MINUTES, 60)
	CONFREV_SOAK_MINUTES=$${MINUTES:-60} $(CONTROLPLANE) run -- \
		$(CARGO) test --locked --test storms soak -- --ignored --nocapture

# MINUTES is the time for each target, TARGETS selects the targets. Needs a nightly compiler and `cargo install cargo-fuzz`.
fuzz: ## Fuzz admission, the rewriting of templates, the digest and the annotations (MINUTES, 20)
	CARGO=$(CARGO) fuzz/run

test-install: controlplane ## Run the tests of the chart, of its guard and rights, and of certificates
	RUST_TEST_THREADS=4 $(CONTROLPLANE) run -- $(CARGO) test --locked --test chart --test tls

test-image: image controlplane ## Run the tests of the image, which build it again in another folder
	CONFREV_IMAGE=$(abspath $(IMAGE)) SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) \
		$(CONTROLPLANE) run -- $(CARGO) test --locked -p confrev-image -- --include-ignored

lint: ## Check formatting, lints, the documentation of the code, and the workflows
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps --document-private-items --quiet
	$(MAKE) --no-print-directory actionlint

# Without the linters of other languages, which not every machine has.
actionlint: ## Check the workflows of .github with actionlint, which is built once
	"$$($(CONTROLPLANE) build actionlint)/actionlint" -shellcheck= -pyflakes=

deny: ## Check the licences, sources and duplicate versions of the dependencies (needs `cargo install cargo-deny`)
	$(CARGO) deny check licenses bans sources

# OFFLINE=1 uses the database that an earlier run stored in $CARGO_HOME/advisory-dbs.
advisories: ## Check the dependencies against the RustSec advisory database, which is fetched (needs `cargo install cargo-deny`)
	$(CARGO) deny check $(if $(OFFLINE),--disable-fetch) advisories

fmt: ## Format all code
	$(CARGO) fmt --all

controlplane: ## Build the control plane's binaries (once; they are kept outside the work tree)
	$(CONTROLPLANE) build

# The heading of each file comes from its values. Helm's comments with the names of templates are removed.
manifests: ## Render manifests/ from charts/confrev (elsewhere with MANIFESTS; IMAGE_DIGEST pins the image)
	@helm=$(HELM); for name in self-signed cert-manager; do \
		values=manifests/values/$$name.yaml; file=$(MANIFESTS)/$$name.yaml; \
		"$$helm" template confrev charts/confrev --namespace confrev --values $$values $(IMAGE_VALUES) > $$file.new || exit 1; \
		{ sed '/^[^#]/,$$d' $$values; sed '/^# Source: /d' $$file.new; } > $$file; rm $$file.new; \
	done; \
	values=manifests/values/carry.yaml; file=$(MANIFESTS)/carry.yaml; sed '/^[^#]/,$$d' $$values > $$file; \
	for part in carry webhooks; do \
		"$$helm" template confrev charts/confrev --namespace confrev --values $$values $(POLICY_API) --show-only templates/$$part.yaml \
			> $$file.new || exit 1; sed '/^# Source: /d' $$file.new >> $$file; rm $$file.new; \
	done

# The standard library and the C compiler for IMAGE_TARGET.
toolchain:
	@! command -v rustup >/dev/null || rustup target list --installed | grep -qx $(IMAGE_TARGET) || \
		rustup target add $(IMAGE_TARGET)
	@[ -n "$(IMAGE_CC)" ] || { echo 'no C compiler for $(IMAGE_TARGET): install one, or set IMAGE_CC' >&2; exit 1; }

# `ring` contains C. Without musl-gcc, the plain compiler is enough: that C uses no library, unless the compiler hardens it.
static: toolchain
	RUSTFLAGS="$(IMAGE_RUSTFLAGS)" CC_$(IMAGE_VARIABLE)=$(IMAGE_CC) $(IMAGE_LINKER) \
		CFLAGS_$(IMAGE_VARIABLE)=-U_FORTIFY_SOURCE \
		$(CARGO) rustc --profile $(IMAGE_PROFILE) --locked --bin confrev $(IMAGE_FEATURES) --target $(IMAGE_TARGET) --target-dir $(IMAGE)/build -- \
		$(IMAGE_LINK)

image: static ## Write target/image/confrev.tar, an OCI image, and its bill of materials, without a container engine
	$(CARGO) run --quiet --locked -p confrev-image -- write --binary $(IMAGE_BINARY) \
		--target $(IMAGE_TARGET) --epoch $(SOURCE_DATE_EPOCH) --output $(IMAGE)

# One archive for IMAGE_TARGET. The manifest lists all existing archives, so that platforms can be built one by one.
KREW ?= target/krew
KREW_URL ?= https://example.com/confrev
PLUGIN_BINARY = $(IMAGE)/plugin/confrev
plugin: image
	$(MAKE) --no-print-directory static IMAGE_FEATURES=
	mkdir -p $(dir $(PLUGIN_BINARY)) && cp $(IMAGE_BINARY) $(PLUGIN_BINARY)

krew: plugin ## Write target/krew: kubectl-confrev as an archive, and its manifest for krew (KREW_URL: its address)
	SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) krew/pack.sh $(PLUGIN_BINARY) \
		$(if $(filter aarch64-%,$(IMAGE_TARGET)),arm64,amd64) $(KREW) "$(KREW_URL)"

# RELEASE_KEY is the file of a private key (EC or RSA, in PEM); without it, nothing is signed. A target without a standard
# library or a C compiler on this machine is left out, unless RELEASE_COMPLETE is set.
DIST ?= target/dist
RELEASE_TARGETS ?= x86_64-unknown-linux-musl aarch64-unknown-linux-musl
RELEASE_COMPLETE ?=
RELEASE_KEY ?=
RELEASE_PUBLIC_KEY ?=
release: controlplane ## Write target/dist: all files of a release, with checksums, provenance and signatures (RELEASE_KEY)
	DIST="$(abspath $(DIST))" TARGETS="$(RELEASE_TARGETS)" COMPLETE="$(RELEASE_COMPLETE)" KEY="$(RELEASE_KEY)" \
		REPOSITORY="$(IMAGE_REPOSITORY)" URL="$(KREW_URL)" SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) \
		CARGO="$(CARGO)" release/build.sh

test-release: controlplane ## Verify each file that `make release` wrote (RELEASE_PUBLIC_KEY: the key of the signatures)
	CONFREV_DIST=$(abspath $(DIST)) CONFREV_RELEASE_PUBLIC_KEY="$(abspath $(RELEASE_PUBLIC_KEY))" \
		$(CONTROLPLANE) run -- $(CARGO) test --locked -p confrev-image --test release -- --include-ignored

release-tools: ## Install the C compilers of a release (Debian and Ubuntu; needs root)
	apt-get update && apt-get install --yes --no-install-recommends gcc-aarch64-linux-gnu musl-tools

publish: ## Publish the files of `make release` as the release of this version (needs GitHub's `gh`)
	gh release create "v$$(sed -n 's/^version = "\(.*\)"$$/\1/p' Cargo.toml | head -n 1)" --verify-tag \
		--title "confrev $$(sed -n 's/^version = "\(.*\)"$$/\1/p' Cargo.toml | head -n 1)" \
		--notes-file CHANGELOG.md $(DIST)/*

# mdBook is built once, and stored beside the control plane's binaries.
MDBOOK_VERSION = 0.5.4
MDBOOK = $${CONFREV_CACHE:-$${XDG_CACHE_HOME:-$$HOME/.cache}}/confrev/mdbook-$(MDBOOK_VERSION)
docs: ## Build the site of docs/ in target/book, and check its links and commands
	@folder="$(MDBOOK)"; [ -x "$$folder/bin/mdbook" ] || $(CARGO) install mdbook --version $(MDBOOK_VERSION) --locked \
		--no-default-features --features search --root "$$folder" --target-dir "$$folder/build"; rm -rf "$$folder/build"; \
	"$$folder/bin/mdbook" build docs
	$(CARGO) test --quiet --locked --test repository -- docs:: reference:: --include-ignored

recording: controlplane ## Record the canary story of the docs again, on a real control plane
	$(CONTROLPLANE) run -- $(CARGO) test --locked --test appliers -- recording:: --include-ignored --test-threads=1

# Measures the static binary, which users run. Writes the table and the plot to BENCH_FOLDER. Starts control planes by
# itself.
BENCH_BIN ?= $(IMAGE_BINARY)
BENCH_FOLDER ?= docs/evidence/performance
BENCH = $(CARGO) build --quiet --locked --profile counted -p confrev-bench -p confrev-controlplane && \
	$${CARGO_TARGET_DIR:-target}/counted/bench

bench: static controlplane ## Measure confrev beside baselines on a real control plane (15 minutes)
	$(BENCH) full $(BENCH_BIN) $(BENCH_FOLDER)

# Its results are not for the docs.
bench-quick: BENCH_FOLDER = target/bench
bench-quick: static controlplane ## Run a small version of the benchmark, in under 2 minutes
	$(BENCH) quick $(BENCH_BIN) $(BENCH_FOLDER)

bench-large: static controlplane ## Run the long parts of the benchmark: 10,000 workloads, and ten minutes at rest (an hour)
	$(BENCH) large $(BENCH_BIN) $(BENCH_FOLDER)

bench-slo: static controlplane ## Measure writes of workloads while 5,000 others roll at the default rate (4 minutes)
	$(BENCH) slo $(BENCH_BIN) $(BENCH_FOLDER)

bench-parts: static controlplane ## Measure the API server's own share of a write, by part of admission (8 minutes)
	$(BENCH) parts $(BENCH_BIN) $(BENCH_FOLDER)

picture: controlplane ## Draw the dashboard again, with data of a real Prometheus (Debian's package `prometheus`)
	$(CONTROLPLANE) run -- $(CARGO) test --locked --test core picture::writes -- --ignored

pictures: controlplane ## Take the pictures of `kubectl confrev dashboard` again (Debian's package `chromium`)
	$(CONTROLPLANE) run -- $(CARGO) test --locked --test dashboard -- pictures:: --include-ignored --test-threads=1

dashboard-figures: build controlplane ## Measure the pages of `kubectl confrev dashboard` with 2,000 workloads
	CONFREV_DASHBOARD_BIN=$(CURDIR)/target/release/confrev $(CONTROLPLANE) run -- $(CARGO) test --locked --test dashboard -- measures_pages --ignored --nocapture

clean: ## Remove the build output; the control plane's binaries stay
	$(CARGO) clean
