.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c

CARGO ?= cargo
TOOLS := target/tools
PROMTOOL := $(TOOLS)/promtool
PROMETHEUS := $(addprefix $(TOOLS)/,prometheus prometheus-operator prometheus-config-reloader)
KUBE_APISERVER := $(TOOLS)/kube-apiserver
KUBECTL := $(TOOLS)/kubectl
NODE_PROGRAMS := $(addprefix $(TOOLS)/,kube-controller-manager kube-scheduler kube-proxy kubelet kubeadm)
COREDNS := $(TOOLS)/coredns
CRICTL := $(TOOLS)/crictl
KIND := $(TOOLS)/kind
KUBE_ROUTER := $(TOOLS)/kube-router
ETCD := $(TOOLS)/etcd
HELM := $(TOOLS)/helm
HELM_UNITTEST := $(TOOLS)/helm-unittest
HELM_DOCS := $(TOOLS)/helm-docs
CRDS := $(TOOLS)/crds
KUSTOMIZE := $(TOOLS)/kustomize
KUBERNETES_VALIDATE := $(TOOLS)/venv/bin/kubernetes-validate
CARGO_DENY := $(TOOLS)/bin/cargo-deny
CARGO_DENY_VERSION := 0.20.2
CARGO_CYCLONEDX := $(TOOLS)/bin/cargo-cyclonedx
CARGO_CYCLONEDX_VERSION := 0.5.9

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

# The image: its name, its architecture in the words of Docker, and the target of Rust that this is.
IMAGE ?= retsu-collector
VERSION = $(shell $(CARGO) pkgid | sed 's/.*[#@]//')
MACHINE := $(patsubst x86_64,amd64,$(patsubst aarch64,arm64,$(shell uname -m)))
ARCH ?= $(MACHINE)
TARGET = $(patsubst amd64,x86_64,$(patsubst arm64,aarch64,$(ARCH)))-unknown-linux-gnu
IMAGE_FEATURES := --no-default-features --features otlp
CONTEXT := target/image/context
ROOTFS = target/image/rootfs/$(ARCH)
SBOM = target/image/retsu-collector-$(VERSION)-$(ARCH).cdx.json

# Debian's compiler for that target links, where it is not the machine's own.
ifneq ($(ARCH),$(MACHINE))
CROSS_LINKER = CARGO_TARGET_$(shell echo $(TARGET) | tr a-z- A-Z_)_LINKER=$(TARGET:-unknown-linux-gnu=-linux-gnu-gcc)
endif

# Another Docker client than Debian's, first on the PATH, may be one without BuildKit.
export DOCKER ?= $(firstword $(wildcard /usr/bin/docker) docker)

# Where the source is, unless that is a directory, and without a password that the address may have.
SOURCE ?= $(shell git config --get remote.origin.url | sed -E 's,//[^@/]*@,//,' | grep -E '^[a-z+]+://|^[^/]+@[^/]+:' || echo unknown)

# What was made from one commit has one date, so that builds repeat. The compiler is not told: build scripts would run
# again for every commit.
SOURCE_DATE ?= $(or $(SOURCE_DATE_EPOCH),$(shell git log -1 --format=%ct 2>/dev/null || echo 0))

# The authorities that Mozilla trusts, of Debian's ca-certificates, and none that this machine alone trusts.
CA_CERTIFICATES ?= /usr/share/ca-certificates/mozilla

# The end-to-end suite: what of its own cluster, and the image that it tests. E2E_IMAGE names one that is there already.
E2E_STATE := $(CURDIR)/target/e2e
E2E_NODE = kind.local/node:$(KUBERNETES_VERSION)
E2E_IMAGE ?=
RETSU_E2E_IMAGE = $(or $(E2E_IMAGE),$(IMAGE):$(VERSION))
KEEP ?=

# What the labels of the image say; `docker build` takes the same for BINARY=source.
IMAGE_ARGUMENTS = --build-arg VERSION=$(VERSION) --build-arg REVISION=$(RETSU_COMMIT) --build-arg SOURCE=$(SOURCE) \
	--build-arg CREATED=$(shell date --utc --date=@$(SOURCE_DATE) +%Y-%m-%dT%H:%M:%SZ) \
	--build-arg SOURCE_DATE_EPOCH=$(SOURCE_DATE)

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: run
run: ## Watch a failover on an embedded PostgreSQL; ARGS="--duration 60" ends it
	$(CARGO) run --locked -- demo $(ARGS)

.PHONY: build
build: ## Build the program for release
	$(CARGO) build --locked --release

# The flags are parted by a character that no path has; a space in one would end a flag.
.PHONY: static
static: ## Build the static program of the image; ARCH=amd64 or arm64 for another machine than this one
	$(if $(filter amd64 arm64,$(ARCH)),,$(error ARCH is $(ARCH): set amd64 or arm64))
	CARGO_ENCODED_RUSTFLAGS="$$(printf '%s\x1f' -C target-feature=+crt-static "--remap-path-prefix=$${CARGO_HOME:-$$HOME/.cargo}=/cargo")--remap-path-prefix=$(CURDIR)=/src" \
		$(CROSS_LINKER) $(CARGO) build --release --locked $(IMAGE_FEATURES) --bin retsu-collector --target $(TARGET)

# Everything that is in the image.
.PHONY: rootfs
rootfs: static
	rm -rf $(ROOTFS)
	install -d -m 0755 $(addprefix $(ROOTFS)/,. etc etc/ssl etc/ssl/certs usr usr/local usr/local/bin)
	install -m 0755 target/$(TARGET)/release/retsu-collector $(ROOTFS)/usr/local/bin
	cat $(CA_CERTIFICATES)/*.crt | install -m 0644 /dev/stdin $(ROOTFS)/etc/ssl/certs/ca-certificates.crt
	mkdir -p $(CONTEXT)
	tar --create --file $(CONTEXT)/$(ARCH).tar --directory $(ROOTFS) --sort=name --mtime=@$(SOURCE_DATE) \
		--numeric-owner --owner=0 --group=0 .

.PHONY: image
image: rootfs ## Build the image from it, without a registry
	e2e/cluster/engine
	DOCKER_BUILDKIT=1 $(DOCKER) build --file Dockerfile --platform linux/$(ARCH) --tag $(IMAGE):$(VERSION) \
		--build-arg BINARY=prebuilt $(IMAGE_ARGUMENTS) $(CONTEXT)

.PHONY: sbom
sbom: $(CARGO_CYCLONEDX) ## List the crates of the program in the image, as CycloneDX in target/image
	mkdir -p target/image
	SOURCE_DATE_EPOCH=$(SOURCE_DATE) $(CARGO_CYCLONEDX) cyclonedx --quiet --format json --spec-version 1.5 --no-build-deps $(IMAGE_FEATURES) \
		--target $(TARGET) --override-filename every-crate.cdx
	mv every-crate.cdx.json target/image
	tree() { $(CARGO) tree --locked $(IMAGE_FEATURES) --target $(TARGET) --prefix none --edges "$$1"; } && \
		jq --from-file tools/sbom/crates.jq --arg tree "$$(tree normal)" --arg linked "$$(tree normal,no-proc-macro)" \
		target/image/every-crate.cdx.json > $(SBOM)

.PHONY: image-test
image-test: image sbom $(KUBE_APISERVER) $(ETCD) ## Run its tests, on this image in a real engine
	RETSU_TEST_IMAGE=$(IMAGE):$(VERSION) RETSU_TEST_SBOM=$(SBOM) RETSU_TEST_SOURCE_DATE=$(SOURCE_DATE) \
		$(CARGO) test --locked --test it -- image::

.PHONY: test
test: $(PROMTOOL) $(KUBE_APISERVER) $(ETCD) ## Run every test: all on the newest and the oldest PostgreSQL, smoke tests on the others
	RETSU_TEST_POSTGRESQL_VERSION=$(NEWEST_POSTGRESQL) $(CARGO) test --locked -- $(SKIPPED)
	RETSU_TEST_POSTGRESQL_VERSION=$(OLDEST_POSTGRESQL) $(CARGO) test --locked --test it -- --skip kubernetes:: $(SKIPPED)
	@for version in $(OTHER_POSTGRESQL); do \
		echo "smoke test on PostgreSQL $$version"; \
		RETSU_TEST_POSTGRESQL_VERSION=$$version $(CARGO) test --locked --test it -- smoke::; \
	done

.PHONY: chart
chart: $(HELM) $(PROMTOOL) $(HELM_UNITTEST) $(HELM_DOCS) $(KUSTOMIZE) $(CRDS) $(KUBERNETES_VALIDATE) $(KUBE_APISERVER) $(ETCD) ## Check the chart: lint, unit tests, schemas, a real API server, drift of what is generated
	$(HELM_UNITTEST) --strict $(CHART)
	$(CARGO) test --locked --test it -- chart::
	$(WRITE_README) --dry-run | diff $(CHART)/README.md - || { echo "run \`make chart-docs\`" >&2; exit 1; }
	$(MAKE) check-manifests

.PHONY: manifests
manifests: $(HELM) ## Render manifests/ from the chart
	HELM=$(HELM) tools/render-manifests manifests

.PHONY: check-manifests
check-manifests: $(HELM) ## Fail when manifests/ is not what the chart renders
	rm -rf target/manifests
	cp -r manifests target/manifests
	grep --recursive --files-with-matches --null '^# Rendered from the chart' target/manifests | xargs -0 rm
	HELM=$(HELM) tools/render-manifests target/manifests
	@diff -ru manifests target/manifests || { echo "manifests/ is out of date: run \`make manifests\`" >&2; exit 1; }

.PHONY: chart-docs
chart-docs: $(HELM_DOCS) ## Write the README of the chart from its values
	$(WRITE_README)

.PHONY: e2e
e2e: ## Run the end-to-end suite on a cluster of its own, which KEEP=1 keeps; ARGS="scaling" runs some of it
	e2e/cluster/run $(MAKE)

.PHONY: e2e-up
e2e-up: $(if $(E2E_IMAGE),,image) $(KUBECTL) $(KIND) $(HELM) $(KUBE_ROUTER) $(PROMETHEUS) ## Bring that cluster up with all images, or bring the one that runs up to date
	e2e/cluster/engine
	@image=$$(e2e/cluster/node-image); if [ "$$image" = $(E2E_NODE) ]; then $(MAKE) --no-print-directory --silent $(KUBE_APISERVER) $(ETCD) $(NODE_PROGRAMS) $(COREDNS) $(CRICTL); fi
	e2e/cluster/images
	e2e/cluster/up
	e2e/cluster/load $(RETSU_E2E_IMAGE) kind.local/postgresql:e2e
	e2e/cluster/prometheus

.PHONY: e2e-test
e2e-test: export KUBECONFIG ?= $(E2E_STATE)/kubeconfig
e2e-test: $(KUBECTL) $(HELM) $(KUBE_ROUTER) ## Run the suite on that cluster, or on the one that KUBECONFIG names
	RETSU_E2E_IMAGE=$(RETSU_E2E_IMAGE) $(CARGO) test --locked --test e2e -- $(ARGS)

.PHONY: e2e-down
e2e-down: $(KIND) ## Remove that cluster
	e2e/cluster/down

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

# The end-to-end suite is in no run of all tests, and so in no `--all-targets` either.
.PHONY: lint
lint: ## Check format, lints and documentation; every warning is an error
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --all-targets --all-features -- -D warnings
	$(CARGO) clippy --locked --test e2e -- -D warnings
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
tools: $(PROMTOOL) $(KUBE_APISERVER) $(ETCD) beside-tests-go $(CRDS) $(KUBERNETES_VALIDATE) $(CARGO_DENY) $(CARGO_CYCLONEDX) ## Build what the other targets run into target/tools

# What takes long to compile and `make test` does without: CI compiles it beside the tests, what is of Go and what is of
# Rust at once.
.PHONY: beside-tests-go beside-tests-cargo
beside-tests-go: $(KUBECTL) $(KIND) $(KUBE_ROUTER) $(PROMETHEUS) $(NODE_PROGRAMS) $(COREDNS) $(CRICTL) $(HELM) $(HELM_UNITTEST) $(HELM_DOCS) $(KUSTOMIZE)
beside-tests-cargo: static $(CARGO_CYCLONEDX) $(CARGO_DENY)

# What has a recipe in common: the package, from the module that is its first prerequisite.
$(KUBE_APISERVER) $(KUBECTL) $(NODE_PROGRAMS): package = k8s.io/kubernetes/cmd/$(@F)
$(ETCD): package := go.etcd.io/etcd/server/v3
$(COREDNS): package := github.com/coredns/coredns
$(CRICTL): package := sigs.k8s.io/cri-tools/cmd/crictl
$(KIND): package := sigs.k8s.io/kind
$(KUBE_ROUTER): package := github.com/cloudnativelabs/kube-router/v2/cmd/kube-router
$(KUSTOMIZE): package := sigs.k8s.io/kustomize/kustomize/v5
$(PROMTOOL) $(TOOLS)/prometheus: package = github.com/prometheus/prometheus/cmd/$(@F)
$(TOOLS)/prometheus-operator: package := github.com/prometheus-operator/prometheus-operator/cmd/operator
$(TOOLS)/prometheus-config-reloader: package = github.com/prometheus-operator/prometheus-operator/cmd/$(@F)

# Service discovery in Kubernetes alone: the clouds' SDKs take longer to compile than everything else.
$(PROMTOOL): go_flags := -tags remove_all_sd
$(TOOLS)/prometheus: go_flags := -tags remove_all_sd,enable_kubernetes_sd

# Go modules carry no version of Kubernetes: its own build stamps it, and so does this one.
KUBERNETES_VERSION = $(shell sed -n 's,^\tk8s.io/kubernetes \(v[0-9.]*\).*,\1,p' tools/kubernetes/go.mod)
kubernetes_version_part = $(word $(1),$(subst ., ,$(KUBERNETES_VERSION:v%=%)))
stamp = -X k8s.io/component-base/version.$(1)=$(2)
$(KUBE_APISERVER) $(KUBECTL) $(NODE_PROGRAMS): link_flags = $(call stamp,gitVersion,$(KUBERNETES_VERSION)) \
	$(call stamp,gitMajor,$(call kubernetes_version_part,1)) $(call stamp,gitMinor,$(call kubernetes_version_part,2))

$(KUBE_APISERVER) $(KUBECTL) $(NODE_PROGRAMS): tools/kubernetes/go.mod tools/kubernetes/go.sum
$(ETCD) $(COREDNS) $(CRICTL) $(KIND) $(KUBE_ROUTER) $(KUSTOMIZE): $(TOOLS)/%: tools/%/go.mod tools/%/go.sum
$(PROMTOOL) $(TOOLS)/prometheus: tools/prometheus/go.mod tools/prometheus/go.sum
$(TOOLS)/prometheus-operator $(TOOLS)/prometheus-config-reloader: tools/prometheus-operator/go.mod tools/prometheus-operator/go.sum

$(KUBE_APISERVER) $(KUBECTL) $(NODE_PROGRAMS) $(ETCD) $(COREDNS) $(CRICTL) $(KIND) $(KUBE_ROUTER) $(KUSTOMIZE) $(PROMTOOL) $(PROMETHEUS):
	mkdir -p $(TOOLS)
	cd $(<D) && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w $(link_flags)" $(go_flags) -o ../../$@ $(package)

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

# It runs for a second: no time is spent on making it fast.
$(CARGO_CYCLONEDX):
	$(CARGO) install --locked --debug --root $(TOOLS) --version $(CARGO_CYCLONEDX_VERSION) cargo-cyclonedx
