# Every target says what it does after `##`; `make help` lists them.
CARGO ?= cargo
CONTROLPLANE = $(CARGO) run --quiet -p confrev-controlplane --bin controlplane --
# Where `make manifests` writes, and the helm that it runs.
MANIFESTS ?= manifests
HELM ?= $$($(CONTROLPLANE) build)/helm

.PHONY: help build demo test test-unit model lint fmt controlplane manifests clean
.DEFAULT_GOAL := help

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build target/release/confrev, and the name under which kubectl finds it
	$(CARGO) build --release --locked
	ln -sf confrev target/release/kubectl-confrev

demo: build controlplane ## Tell the canary story on a real control plane, in under a minute
	CONFREV_BIN=target/release/confrev $(CARGO) run --quiet --locked -p confrev-controlplane --example demo

test: controlplane ## Run all tests, on a real control plane that they share
	RUST_TEST_THREADS=4 $(CONTROLPLANE) run -- $(CARGO) test --locked --workspace

test-unit: ## Run the tests that need no control plane
	$(CARGO) test --locked --lib --test decision --test model --test tls

# CONFREV_MODEL_SEQUENCES says how many; CONFREV_MODEL_SEED, which ones.
model: controlplane ## Hold the promises against random sequences of events, on a real control plane (minutes)
	$(CONTROLPLANE) run -- $(CARGO) test --locked --test model real -- --ignored --nocapture

lint: ## Check formatting and lints
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

fmt: ## Format all code
	$(CARGO) fmt --all

controlplane: ## Build the control plane's binaries (once; they are kept outside the work tree)
	$(CONTROLPLANE) build

# The heading of each file is that of its values; what Helm says of its own templates is left out.
manifests: ## Render manifests/ from charts/confrev
	@helm=$(HELM); for name in self-signed cert-manager; do \
		values=manifests/values/$$name.yaml; file=$(MANIFESTS)/$$name.yaml; \
		"$$helm" template confrev charts/confrev --namespace confrev --values $$values > $$file.new || exit 1; \
		{ sed '/^[^#]/,$$d' $$values; sed '/^# Source: /d' $$file.new; } > $$file; rm $$file.new; \
	done

clean: ## Remove what was built here; the control plane's binaries stay
	$(CARGO) clean
