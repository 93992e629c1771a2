.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c

CARGO ?= cargo
TOOLS := target/tools
PROMTOOL := $(TOOLS)/promtool
KUBE_APISERVER := $(TOOLS)/kube-apiserver
ETCD := $(TOOLS)/etcd
HELM := $(TOOLS)/helm
HELM_UNITTEST := $(TOOLS)/helm-unittest
HELM_DOCS := $(TOOLS)/helm-docs
CRDS := $(TOOLS)/crds
KUBERNETES_VALIDATE := $(TOOLS)/venv/bin/kubernetes-validate
CARGO_DENY := $(TOOLS)/bin/cargo-deny
CARGO_DENY_VERSION := 0.20.2

# The integration suite runs on the newest and the oldest PostgreSQL, a smoke test on those between. What is between
# the collector and Kubernetes is the same on all of them, and is tested on the newest.
NEWEST_POSTGRESQL := 18
OLDEST_POSTGRESQL := 14
OTHER_POSTGRESQL := 15 16 17

# `make audit` checks the advisories when their database can be fetched; `ADVISORIES=required` fails otherwise.
ADVISORIES ?=

CHART := charts/retsu-collector
WRITE_README := $(HELM_DOCS) --chart-search-root charts --sort-values-order file --log-level warning

# What `make test` leaves to targets of their own.
SKIPPED := --skip chart:: --skip image::

# What `make chaos` injects, and on how many clusters at a time.
CHAOS_FAULTS ?= 300
CHAOS_CLUSTERS ?= 4

# How many random sequences of faults it tries on replicas in Kubernetes.
KUBERNETES_SEQUENCES ?= 50

# How often it tries each combination of a pooler's mode, size and load.
POOLER_TRIALS ?= 50

# The commit that the program names as its own.
export RETSU_COMMIT ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: run
run: ## Watch a failover on an embedded PostgreSQL; ARGS="--duration 60" ends it
	$(CARGO) run --locked -- demo $(ARGS)

.PHONY: build
build: ## Build the program for release
	$(CARGO) build --locked --release

.PHONY: test
test: $(PROMTOOL) $(KUBE_APISERVER) $(ETCD) ## Run every test: all on the newest and the oldest PostgreSQL, smoke tests on the others
	RETSU_TEST_POSTGRESQL_VERSION=$(NEWEST_POSTGRESQL) $(CARGO) test --locked -- $(SKIPPED)
	RETSU_TEST_POSTGRESQL_VERSION=$(OLDEST_POSTGRESQL) $(CARGO) test --locked --test it -- --skip kubernetes:: $(SKIPPED)
	@for version in $(OTHER_POSTGRESQL); do \
		echo "smoke test on PostgreSQL $$version"; \
		RETSU_TEST_POSTGRESQL_VERSION=$$version $(CARGO) test --locked --test it -- smoke::; \
	done

.PHONY: chart
chart: $(HELM) $(PROMTOOL) $(HELM_UNITTEST) $(HELM_DOCS) $(CRDS) $(KUBERNETES_VALIDATE) $(KUBE_APISERVER) $(ETCD) ## Check the chart: lint, unit tests, schemas, a real API server, drift of what is generated
	$(HELM_UNITTEST) --strict $(CHART)
	$(CARGO) test --locked --test it -- chart::
	$(WRITE_README) --dry-run | diff $(CHART)/README.md - || { echo "run \`make chart-docs\`" >&2; exit 1; }

.PHONY: chart-docs
chart-docs: $(HELM_DOCS) ## Write the README of the chart from its values
	$(WRITE_README)

.PHONY: chaos
chaos: $(KUBE_APISERVER) $(ETCD) ## Inject 300 random faults, 50 times 8 into Kubernetes, and probe every pooler 50 times; CHAOS_SEED=N repeats the faults, UPDATE_DOCS=1 writes docs/failover.*
	CHAOS_FAULTS=$(CHAOS_FAULTS) CHAOS_CLUSTERS=$(CHAOS_CLUSTERS) \
		$(CARGO) test --locked --test chaos -- --nocapture random_faults
	RETSU_TEST_KUBERNETES_SEQUENCES=$(KUBERNETES_SEQUENCES) \
		$(CARGO) test --locked --test it -- --nocapture kubernetes::random_faults
	RETSU_TEST_POOLER_TRIALS=$(POOLER_TRIALS) $(CARGO) test --locked --test it -- --nocapture poolers::a_

.PHONY: model
model: ## Check the lease on larger models than `make test` does, in some minutes
	RETSU_MODEL_LONG=1 $(CARGO) test --locked --test model -- --nocapture

.PHONY: lint
lint: ## Check format, lints and documentation; every warning is an error
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --all-targets --all-features -- -D warnings
	$(CARGO) clippy --locked --all-targets --no-default-features -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps --all-features

.PHONY: fmt
fmt: ## Format the code
	$(CARGO) fmt

.PHONY: bench
bench: $(KUBE_APISERVER) $(ETCD) ## Measure what docs/benchmarks.md reports, in a few minutes; fails when a bound is missed
	$(CARGO) bench --locked --no-fail-fast --bench scrape --bench collector --bench kubernetes

.PHONY: audit
audit: $(CARGO_DENY) ## Check licences, sources, banned crates and, when they can be fetched, advisories
	$(CARGO_DENY) --locked check bans licenses sources
	@if $(CARGO_DENY) fetch db; then \
		$(CARGO_DENY) --locked check advisories; \
	else \
		echo "*** ADVISORIES WERE NOT CHECKED: their database cannot be fetched from here."; \
		echo "*** Run \`make audit\` where it can."; \
		test "$(ADVISORIES)" != required; \
	fi

.PHONY: tools
tools: $(PROMTOOL) $(KUBE_APISERVER) $(ETCD) $(HELM) $(HELM_UNITTEST) $(HELM_DOCS) $(CRDS) $(KUBERNETES_VALIDATE) $(CARGO_DENY) ## Build what the other targets run into target/tools

# Without service discovery: the clouds' SDKs take longer to compile than everything else.
$(PROMTOOL): tools/prometheus/go.mod tools/prometheus/go.sum
	mkdir -p $(TOOLS)
	cd tools/prometheus && go build -tags remove_all_sd -o ../../$@ github.com/prometheus/prometheus/cmd/promtool

# Go modules carry no version of Kubernetes: its own build stamps it, and so does this one.
$(KUBE_APISERVER): tools/kubernetes/go.mod tools/kubernetes/go.sum
	mkdir -p $(TOOLS)
	cd tools/kubernetes && version=$$(go list -m -f '{{.Version}}' k8s.io/kubernetes) && major_minor=$${version#v} && \
		minor=$${major_minor#*.} && base=k8s.io/component-base/version && CGO_ENABLED=0 go build -trimpath -ldflags \
		"-s -w -X $$base.gitVersion=$$version -X $$base.gitMajor=$${major_minor%%.*} -X $$base.gitMinor=$${minor%%.*}" \
		-o ../../$@ k8s.io/kubernetes/cmd/kube-apiserver

$(ETCD): tools/etcd/go.mod tools/etcd/go.sum
	mkdir -p $(TOOLS)
	cd tools/etcd && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o ../../$@ go.etcd.io/etcd/server/v3

# One module: they share most of what there is to compile. They are stamped with the version of Kubernetes that they
# know, as Helm's own build does; without, it is 1.20.
$(HELM) $(HELM_UNITTEST) $(HELM_DOCS) &: tools/helm/go.mod tools/helm/go.sum
	mkdir -p $(TOOLS)
	cd tools/helm && version=$$(go list -m -f '{{.Version}}' helm.sh/helm/v3) && \
		minor=$$(go list -m -f '{{.Version}}' k8s.io/client-go | cut -d. -f2) && helm=helm.sh/helm/v3 && \
		CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X $$helm/internal/version.version=$$version \
		-X $$helm/pkg/chartutil.k8sVersionMajor=1 -X $$helm/pkg/chartutil.k8sVersionMinor=$$minor \
		-X $$helm/pkg/lint/rules.k8sVersionMajor=1 -X $$helm/pkg/lint/rules.k8sVersionMinor=$$minor" \
		-o ../../$(TOOLS)/ tool

# What the chart and the examples have resources of; nothing of these modules is compiled.
$(CRDS): tools/crds/go.mod tools/crds/go.sum
	rm -rf $@ $@.new
	mkdir -p $@.new
	cd tools/crds && directory() { go mod download -json "$$1" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p'; } && \
		operator=$$(directory github.com/prometheus-operator/prometheus-operator) && \
		keda=$$(directory github.com/kedacore/keda/v2) && install -m 644 -t ../../$@.new \
		$$operator/example/prometheus-operator-crd/*_{servicemonitors,podmonitors,prometheusrules}.yaml \
		$$keda/config/crd/bases/*_{scaledobjects,triggerauthentications}.yaml
	mv $@.new $@

$(KUBERNETES_VALIDATE): tools/kubernetes-validate/requirements.txt
	python3 -m venv --clear $(TOOLS)/venv
	$(TOOLS)/venv/bin/pip install --quiet --disable-pip-version-check --requirement $<
	touch $@

$(CARGO_DENY):
	$(CARGO) install --locked --root $(TOOLS) --version $(CARGO_DENY_VERSION) cargo-deny
