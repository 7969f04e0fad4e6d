# Weir. `make demo` and `make test` need only git, make and root on Debian 12: `setup` brings the rest.

WEIR_CACHE ?= $(HOME)/.cache/weir
export PATH := $(WEIR_CACHE)/go/bin:$(PATH):/usr/local/go/bin
export WEIR_CACHE
export CGO_ENABLED := 0
export GOFLAGS := -buildvcs=false
export GOTOOLCHAIN := local

VERSION ?= $(shell git describe --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X github.com/weir-net/weir/internal/version.Version=$(VERSION)
# Programs are stripped, so debug information is not made in the first place. With the lab's programs
# (lab/internal/build) they share what is compiled, which takes the same flags. A compiler that
# collects its garbage less often takes a quarter less CPU time, and some GiB. What grpcnotrace leaves
# out calls methods by names of templates: with it the linker would keep every method of every type.
GO_BUILD := GOGC=400 go build -trimpath -gcflags all=-dwarf=false -tags grpcnotrace
BUILD_LAB := cd lab && $(GO_BUILD) -ldflags "-s -w" -o ../bin/weir-lab ./cmd/weir-lab

.PHONY: all help check lint check-root soak house image setup build aws-vpc-cni azure-cni hubble-cli otelcol browser lab-build generate generated unit kernels differential lab-unit lab-e2e test mutation apiserver hostile fuzz e2e e2e-conformance e2e-bgp e2e-wireguard e2e-calicoctl e2e-clouds e2e-egress e2e-kernels e2e-migrate e2e-policyapi e2e-routing e2e-build demo demo-build demo-walk bench bench-services bench-backends bench-pods bench-scale bench-cluster bench-cluster-docs bench-policy bench-micro bench-gate bench-flows clean

all: build

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' Makefile

# What needs neither root nor anything but Go: the packages whose tests load, mount and listen to nothing.
CHECK := ./internal/agent/problems ./internal/agentapi/... ./internal/calc/... ./internal/config ./internal/dataplane ./internal/dataplane/handover \
	./internal/delta ./internal/events ./internal/fanout/digest ./internal/fanout/wire ./internal/gctuner ./internal/httplimit ./internal/jhash ./internal/maglev \
	./internal/model ./internal/nodestate ./internal/nodeview ./internal/packet ./internal/reason ./internal/selector ./internal/sim ./internal/sleep \
	./internal/watch/... ./internal/why/wire ./hack/... ./test/docs ./test/fields ./test/rules ./test/scenarios/scenario
check: ## lane 1: gofmt, vet, tests that need only Go
	@unformatted=$$(gofmt -l api bpf cmd deploy hack internal lab test); [ -z "$$unformatted" ] || { echo "gofmt -w is needed: $$unformatted"; exit 1; }
	go vet ./...
	go test $(CHECK)
	@echo "make check: passed: gofmt, vet, tests without root, documents"

# golangci-lint of hack/tools/go.mod with .golangci.yml, in each module. clang-format checks bpf/, where no file is generated, against
# .clang-format: clang-format-19 -i bpf/*.[ch] repairs.
lint: export WEIR_SETUP_MORE := clang-format-19
lint: generated ## linters of Go and C, generated files (root, for compilers that are missing)
	@mkdir -p bin
	cd hack/tools && go build -o ../../bin/golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	bin/golangci-lint run ./...
	cd lab && $(CURDIR)/bin/golangci-lint run ./...
	cd test/policyapi && $(CURDIR)/bin/golangci-lint run ./...
	cd test/awsvpc && $(CURDIR)/bin/golangci-lint run ./...
	cd test/azurecni && $(CURDIR)/bin/golangci-lint run ./...
	clang-format-19 --dry-run --Werror bpf/*.[ch]
	@echo "make lint: passed: golangci-lint, clang-format, generated files"

# Loaded programs, kernels that the drivers wrote, network namespaces: of each kind what finds most in ten minutes, without an API
# server. -short leaves out of test/netns and test/scenarios what their short_test.go say; unit plays all.
CHECK_ROOT := ./internal/agent/... ./internal/announce/... ./internal/cni/... ./internal/conntrack/... ./internal/dataplane/... ./internal/ipam/... \
	./internal/kernel/... ./internal/iptables/... ./internal/kubeproxy/... ./internal/why/... ./test/scenarios/... ./test/netns
check-root: setup ## lane 2 in short: loaded programs and namespaces, 10 minutes (root)
	go test -short -timeout 20m $(CHECK_ROOT)
	@echo "make check-root: passed"

# How large packages and files are, whether import rules hold, how long make check and the last make test took; writes out/house.json.
house: ## sizes of packages and files, import rules, seconds of the lanes
	@go run ./hack/house

# What the machine lacks: compilers, containerd, Go. Does nothing when all is there.
setup: ## Debian packages and Go that this machine lacks
	@hack/setup.sh

build: setup ## Weir's programs and the lab, in bin/
	@mkdir -p bin
	@echo "build  $(patsubst cmd/%,bin/%,$(wildcard cmd/*))"; $(GO_BUILD) -ldflags "$(LDFLAGS)" -o bin/ ./cmd/...
	@echo "build  bin/weir-lab"; $(BUILD_LAB)

# Amazon's CNI plugins and the stand-in for its address daemon, for labs with it and for test/netns, and containerd 2 as on nodes of EKS:
# minutes and GiB the first time.
AWS_CNI := github.com/aws/amazon-vpc-cni-k8s/cmd
CONTAINERD := github.com/containerd/containerd/v2/cmd
aws-vpc-cni: ## Amazon's VPC CNI for labs, in bin/
	@mkdir -p bin
	cd test/awsvpc && go build -trimpath -o ../../bin/aws-cni $(AWS_CNI)/routed-eni-cni-plugin && go build -trimpath -o ../../bin/egress-cni $(AWS_CNI)/egress-cni-plugin && go build -trimpath -o ../../bin/awsvpc .
	cd test/containerd && go build -trimpath -tags "no_btrfs no_devmapper no_zfs no_tracing" -ldflags "-s -w" -o ../../bin/containerd2/ $(CONTAINERD)/containerd $(CONTAINERD)/containerd-shim-runc-v2

# Azure's CNI plugin and the stand-in for its host service, for labs with it.
azure-cni: ## Azure CNI for labs, in bin/
	@mkdir -p bin
	hack/azure-cni.sh bin

# Kubernetes' binaries and the images of the lab, once; progress is shown.
lab-build: build ## Kubernetes' programs and the lab's images, once
	@bin/weir-lab build

# With e2e.test and ginkgo, which the specs need and nothing else: they take as long as all servers together.
e2e-build: build
	@bin/weir-lab build --e2e

# The image that DaemonSet and Deployment run, to be pushed to a registry.
image: build ## Weir's image as an archive: bin/weir.tar
	@bin/weir-lab image --output bin/weir.tar
	@echo "image  bin/weir.tar (weir.local/weir:dev)"

# Everything that is made from something else: eBPF objects, CRDs, deep copies, reasons, deploy/weir.yaml.
generate: setup ## eBPF objects, CRDs, manifests, reference pages, from their sources
	@go generate ./...

# Generated files are what their sources make of them: making them again changes nothing. What else is not committed does not matter.
generated: setup ## generated files are what their sources give
	@before=$$(git diff -- . | sha256sum); go generate ./... || exit 1; \
	[ "$$(git diff -- . | sha256sum)" = "$$before" ] || { git diff --stat -- .; echo "generated files differed from what their sources give: commit what make generate made"; exit 1; }

# An API server and etcd where tests look for them, and nothing else of the lab.
apiserver: setup ## an API server and etcd for tests
	@mkdir -p bin $(WEIR_CACHE)/apiserver
	@$(BUILD_LAB)
	@bin/weir-lab build kube-apiserver etcd
	@bin/weir-lab build kube-apiserver etcd | while read -r f; do if [ -x "$$f" ]; then ln -sf "$$f" $(WEIR_CACHE)/apiserver/; fi; done

# The hubble CLI and hubble-relay of Cilium, for tests of their API; built once.
HUBBLE_CLI := $(WEIR_CACHE)/hubble-cli
hubble-cli: setup ## the hubble CLI and hubble-relay, for tests
	@hack/hubble.sh $(HUBBLE_CLI)

# OpenTelemetry's collector, for a test of what the store of flow records sends it.
OTELCOL := $(WEIR_CACHE)/otelcol
otelcol: setup ## OpenTelemetry's collector, for tests
	@mkdir -p $(WEIR_CACHE)
	@cd test/otelcol && go build -trimpath -o $(OTELCOL) .

# Chromium, and the modules of npm, for tests of the page in the browser.
CHROMIUM := /usr/bin/chromium
WITH_BROWSER = WEIR_CHROMIUM=$(CHROMIUM) WEIR_WEB_MODULES=$$(hack/web.sh modules)
browser: setup ## Chromium, for tests of the page
	@WEIR_SETUP_MORE=chromium hack/setup.sh
	@hack/web.sh modules >/dev/null

# Unit tests, scenarios on the oracle and on the loaded programs, namespace tests. Needs root. What takes longest begins first: nothing is
# left to run alongside it in the end. Results come in this order, so the first ones late. What a test builds is compiled before: Amazon's
# CNI plugin needs minutes and GiB the first time. go vet has looked at everything before, so go test need not.
LONGEST := ./test/netns ./test/scenarios ./internal/dataplane/ebpf
unit: apiserver hubble-cli otelcol browser ## lane 2: unit tests, scenarios, loaded programs, namespaces (root)
	go vet ./...
	cd test/awsvpc && go vet . && go build . $(AWS_CNI)/routed-eni-cni-plugin
	cd test/azurecni && go vet .
	cd test/otelcol && go vet .
	$(WITH_BROWSER) WEIR_APISERVER_BIN_DIR=$(WEIR_CACHE)/apiserver WEIR_HUBBLE=$(HUBBLE_CLI) WEIR_HUBBLE_RELAY=$(WEIR_CACHE)/hubble-relay WEIR_OTELCOL=$(OTELCOL) go test -vet=off -timeout 60m $(LONGEST) ./...
	cd test/policyapi && go vet . ./sctp && go test . ./sctp

# Weir's tests on other kernels (Debian's 5.10, 6.1, 6.12 and the newest 7), in an emulator; writes out/kernels.json. KERNELS="-kernels 6.1 -only programs" sets more.
kernels: export WEIR_SETUP_MORE := qemu-system-x86 cpio kmod xz-utils
kernels: generate ## tests on other kernels, in an emulator (root)
	go run ./test/kernels $(KERNELS)

# A whole cluster of one node, which the lab brings up in an emulated Debian with cgroup v2 alone and lockdown=integrity: on 6.12 and 6.1, and on 6.12
# with SELinux in force; writes out/cluster.json and out/selinux.json, and consoles beside them. KERNELS="-kernels 7" has another kernel.
e2e-kernels: export WEIR_SETUP_MORE := qemu-system-x86 cpio kmod xz-utils e2fsprogs
e2e-kernels: lab-build ## a cluster of one node on other kernels, in an emulator (root)
	go vet -tags lab ./test/kernels/cluster
	go run ./test/kernels -cluster weir -limit 2h -out out/cluster.json $(KERNELS)
	go run ./test/kernels -cluster selinux -limit 2h -out out/selinux.json $(KERNELS)

# What works of BGP, IP in IP and WireGuard, by their tests, with BIRD 2 and 3, FRR 8 and 10 and OpenBGPD 7 and 8; writes out/routing.json. ROUTING="-doc docs/results/routing.md -out docs/results/routing.json" writes the results of the documents.
e2e-routing: generate ## what works of BGP, IP in IP and WireGuard (root)
	@mkdir -p out
	hack/routers.sh $(WEIR_CACHE)/routers
	WEIR_ROUTERS=$(WEIR_CACHE)/routers go run ./test/routing $(ROUTING)

# A night's worth of random policies and packets, the loaded programs against the oracle: PAIRS packets of IPv4, as many of IPv6, as many of both.
PAIRS ?= 333334
differential: generate ## random policies and packets, programs against the oracle (root, a night)
	WEIR_DIFFERENTIAL=$(PAIRS) go test -v -count 1 -timeout 12h ./test/scenarios -run 'TestDifferential(IPv6|Dual)?$$'

# What looks for faults that come once in hours: random packets for SOAK on both data planes, changes of the data plane under SOAK_SWITCH
# connections that may lose nothing, floods of SOAK_FLOOD packets, and each fuzz target for SOAK_FUZZ. WEIR_MATRIX=full has all combinations
# of data plane, family and settings, of which unit plays those in which every two values occur together.
SOAK ?= 2h
SOAK_SWITCH ?= 200
SOAK_FLOOD ?= 1000000
SOAK_FUZZ ?= 10m
soak: generate ## random packets, switches, floods and fuzzing for hours (root)
	WEIR_DIFFERENTIAL=$(SOAK) go test -v -count 1 -timeout 48h ./test/scenarios -run '^TestDifferential'
	WEIR_SWITCH=$(SOAK_SWITCH) go test -v -count 1 -timeout 6h ./test/netns -run '^TestSwitch'
	WEIR_MATRIX=full go test -v -count 1 -timeout 6h ./test/netns ./internal/dataplane/ebpf
	WEIR_FLOOD=$(SOAK_FLOOD) go test -v -count 1 -timeout 6h ./test/netns -run 'TestFlood$$'
	go run ./hack/fuzz -time $(SOAK_FUZZ)

# Deliberate faults in calc and the programs, one at a time in a copy of the tree: the tests that make test runs must find each. MUTATION="-attacks -only pool" sets more.
mutation: apiserver ## deliberate faults, each of which a test must find (hours)
	WEIR_APISERVER_BIN_DIR=$(WEIR_CACHE)/apiserver go run ./hack/mutation $(MUTATION)

# Attacks on Weir, each held (docs/design/security.md); writes out/hostile.json. HOSTILE="-only ./deploy" sets more.
hostile: apiserver ## the attacks of docs/design/security.md (root)
	WEIR_APISERVER_BIN_DIR=$(WEIR_CACHE)/apiserver go run ./test/hostile $(HOSTILE)

# Each fuzz target for a while; inputs that reached new code are kept in testdata/fuzz. FUZZ="-time 10s -only watch" sets more.
fuzz: setup ## each fuzz target for a while
	go run ./hack/fuzz $(FUZZ)

# The lab's own tests; they bring real labs up and down.
lab-unit: lab-build ## the lab's own tests (root)
	cd lab && go vet ./... && WEIR_LAB_TEST=1 go test -timeout 60m ./...

# One after the other: what failed is named in the last lines.
TEST_PARTS := setup build generated unit lab-unit lab-e2e e2e-conformance
test: ## lane 3: everything that CI runs (root)
	@MAKE="$(MAKE)" hack/parts.sh $(TEST_PARTS)

# Weir as a whole in a lab of its own: traffic, restarts, failures; writes out/lab.json. LAB="-args -judge" also fails on what takes longer than is promised.
# TestOnAzureOverlay differs from TestOnAzure by the lab's network alone. That, TestOnAWSIPv6, and nftables with the plugins of clouds
# (-clouds-all) take minutes, and are part of e2e-clouds.
lab-e2e: e2e-build aws-vpc-cni azure-cni hubble-cli browser ## Weir as a whole in a lab (root)
	go vet -tags lab ./test/lab
	$(WITH_BROWSER) WEIR_HUBBLE=$(HUBBLE_CLI) go test -v -tags lab -count 1 -timeout 60m -skip '^(TestOnAzureOverlay|TestOnAWSIPv6|TestEgressAtStart)$$' ./test/lab $(if $(INSTALL),-install="$(INSTALL)") $(LAB)

# Kubernetes' own end-to-end specs of sig-network in labs, all but those that test/e2e/skips.golden names; writes out/e2e….json.
# WEIR_E2E_FOCUS narrows them; E2E="--connect-time Disabled --mode DSR --repeat 3" sets the rest (go run ./test/e2e --help).
# INSTALL="--fanout=always" has agents fed by a fan-out, here and in lab-e2e and e2e-policyapi: arguments of weir install.
e2e: e2e-build ## Kubernetes' end-to-end specs in labs (root)
	go run ./test/e2e --install "$(INSTALL)" $(E2E)

# Of the release of Calico that labs have; building it takes some minutes the first time.
e2e-calicoctl: apiserver ## calicoctl against what clients of the Calico API are shown (root)
	@bin/weir-lab build calicoctl
	WEIR_APISERVER_BIN_DIR=$(WEIR_CACHE)/apiserver WEIR_CALICOCTL=$$(bin/weir-lab build calicoctl | tail -1) go test -v -count 1 -run '^TestCalicoctl$$' ./internal/ipam/mirror

# Those of them that are conformance specs or quick, in one plain lab. Its agents are fed by a fan-out, those of lab-e2e read the API
# server, so that make test has both; INSTALL= has it otherwise.
e2e-conformance: INSTALL ?= --fanout=always
e2e-conformance: e2e-build ## those of conformance, in one lab (root)
	go run ./test/e2e --conformance --second-try --install "$(INSTALL)" $(E2E)

# The same in a lab with two racks, between which the router's only routes to pods are those that it learns by BGP.
# SPECS="--group netpol" has others in such labs, here and in e2e-wireguard: those of NetworkPolicy.
SPECS ?= --conformance --second-try
e2e-bgp: e2e-build ## those of conformance, where BGP alone knows pods (root)
	go run ./test/e2e $(SPECS) --bgp --install "$(INSTALL)" $(E2E)

# The same in a lab whose nodes encrypt what they send to each other's pods.
e2e-wireguard: e2e-build ## those of conformance, where all of pods' traffic between nodes is encrypted (root)
	go run ./test/e2e $(SPECS) --wireguard --install "$(INSTALL)" $(E2E)

# The labs of clouds' CNI plugins: Weir's test in each, and upstream's specs; then those of e2e-migrate with its figures; writes out/clouds.json. CLOUDS="-doc docs/results/clouds.md
# -out docs/results/clouds.json" writes the results of the documents, CLOUDS="-parts netpol -resume" runs a part and keeps the others'.
e2e-clouds: export WEIR_SETUP_BIRD1 := yes
e2e-clouds: e2e-build aws-vpc-cni azure-cni ## Weir, and upstream's specs, with the CNI plugins of clouds (root)
	go vet -tags lab ./test/lab ./test/migrate
	go run ./test/clouds $(CLOUDS)

# Packets of pods that leave by egress gateways, from their first moment to their last, while gateways change; a listener outside counts
# their sources, which out/lab.json has. EGRESS="-egress-adds 1000 -egress-pods 30" tries less.
e2e-egress: lab-build ## first packets by egress gateways, in a lab (root)
	go vet -tags lab ./test/lab
	go test -v -tags lab -count 1 -timeout 90m ./test/lab -run '^TestEgressAtStart$$' $(or $(EGRESS),-egress-adds 10000 -egress-pods 300)

# weir migrate in labs that run Calico and flannel, which are built for it: the plan, nodes that change while their pods run, and by drain.
e2e-migrate: export WEIR_SETUP_BIRD1 := yes
e2e-migrate: lab-build ## migration, in labs with Calico and flannel (root)
	go vet -tags lab ./test/migrate
	go test -v -tags lab -count 1 -timeout 60m ./test/migrate $(MIGRATE)

# The conformance suite of sigs.k8s.io/network-policy-api in a lab of its own; writes out/policyapi.json. POLICYAPI="--repeat 3 --only CNPAdminTierGress" sets more.
e2e-policyapi: lab-build ## the suite of network-policy-api in a lab (root)
	cd test/policyapi && go build -o ../../bin/policyapi .
	bin/policyapi --install "$(INSTALL)" $(POLICYAPI)

# It ends with what took how long. Compilers of the eBPF programs are not needed, because the tree has the objects.
demo: export WEIR_SETUP := lab
demo: ## a real Kubernetes on this machine, and what Weir does, step by step (root)
	@MAKE="$(MAKE)" hack/timed.sh demo setup build demo-build demo-walk
demo-build:
	@bin/weir-lab build
demo-walk:
	@mkdir -p bin out
	@$(GO_BUILD) -ldflags "-s -w" -o bin/demo ./hack/demo
	bin/demo

# The matrix of paths and configurations in labs; writes out/bench.json, docs/results/benchmarks.md's tables of it and their pictures.
# BENCH="-rounds 5 -extra 2" sets more (go run ./test/bench/lab -help).
bench: lab-build ## latency and throughput in labs, compared with kube-proxy (root)
	@mkdir -p out
	go run ./test/bench/lab $(BENCH)
	go run ./hack/plot-bench

# Latency of Services among 10 to 100,000 others; writes out/bench-services.json.
LABS ?= none,kube-proxy-iptables,kube-proxy-nftables,weir-tunnel,weir-dsr
bench-services: lab-build ## latency of Services among 10 to 100,000 others (root)
	@mkdir -p out
	go run ./test/bench/lab -rounds 9 -extra 4 -configurations $(LABS) -sizes 10,1000,10000,100000

# Latency of a Service with 5,000 backends, and of one with one; writes out/bench-backends.json.
bench-backends: lab-build ## latency of a Service with 5,000 backends (root)
	@mkdir -p out
	go run ./test/bench/lab -rounds 9 -extra 4 -configurations $(LABS) -backends 5000

# 50,000 requests of ApacheBench to a Service while 10 to 16,000 pods are behind Services; writes out/bench-pods.json.
bench-pods: export WEIR_SETUP_MORE := apache2-utils
bench-pods: lab-build ## ApacheBench while 10 to 16,000 pods are behind Services (root)
	@mkdir -p out
	go run ./test/bench/lab -rounds 5 -extra 2 -configurations $(LABS) -pods 10,100,1000,4000,16000

# Endpoint change to effect, CPU, start and memory of the agent at 10 to 100,000 Services. SIZES and PLANES choose.
SIZES ?= 10,1000,10000,100000
PLANES ?= weir,kube-proxy-nftables,kube-proxy-iptables
bench-scale: lab-build ## endpoint change to effect, CPU, start, memory, by size (root)
	@mkdir -p out
	WEIR_APISERVER_BIN_DIR=$(WEIR_CACHE)/apiserver WEIR_SCALE_SIZES=$(SIZES) WEIR_SCALE_PLANES=$(PLANES) WEIR_SCALE_CHANGES=300 \
		WEIR_SCALE_OUT=$(CURDIR)/out/bench-scale.json go test ./test/bench/scale -run TestScale -v -count=1 -timeout 3h

# Clusters of 100, 300 and 1,000 nodes on this machine, one after the other: two fan-outs, one agent, stand-ins for the others; some 25 minutes
# on two CPUs, 8 GiB of memory; five of these minutes the API server is away (-away). Writes out/bench-cluster.json, out/bench-cluster-rows.json and out/bench-cluster.svg.
# BENCH="-sizes 3000 -brief -direct=false" is 3,000 nodes: some 40 GiB of memory. BENCH sets more (go run ./test/bench/cluster -help).
bench-cluster: apiserver ## a cluster of 1,000 nodes: fan-outs and an agent, memory, CPU, latency (root)
	@mkdir -p out
	WEIR_APISERVER_BIN_DIR=$(WEIR_CACHE)/apiserver go run ./test/bench/cluster -plot out/bench-cluster.svg $(BENCH)

# The results of bench-cluster in docs/results: the files, the picture and the tables.
bench-cluster-docs: ## put the results of bench-cluster into docs/results
	cp out/bench-cluster-rows.json docs/results/bench/
	go run ./test/bench/cluster -show docs/results/bench/bench-cluster-rows.json -out docs/results/bench/bench-cluster.json \
		-plot docs/results/bench/bench-cluster.svg -doc docs/results/bench-cluster.md

# What a change of policy costs the agent with 2,000 policies and 100,000 pods, and memory.
bench-policy: setup ## what a change of policy costs the agent (root)
	go test ./test/bench/policy -run '^$$' -bench . -benchtime 100x -timeout 1h

bench-micro: setup ## nanoseconds a packet in the programs (root)
	@mkdir -p out
	go test ./test/bench/micro -run '^$$' -bench . -benchtime 1x

# What flow records cost, and what they are good for (docs/results/flows.md); writes out/flows.json. BENCH="-records 100000000" is as much as the store is meant to
# keep, BENCH="-parts store" a part (go run ./test/bench/flows -help).
bench-flows: setup browser ## flow records: the store, a packet, names, previews, the page (root)
	$(WITH_BROWSER) go run ./test/bench/flows -out out/flows.json $(BENCH)

# Whether the programs cost more than those of another commit, by the benchmarks of bench-micro in turns: make bench-gate OLD=COMMIT ROUNDS=15. Fails when a row, or all together, are slower.
ROUNDS ?= 15
bench-gate: setup ## programs against those of OLD=COMMIT; fails when slower (root)
	@test -n "$(OLD)" || { echo "bench-gate: OLD names the commit to compare with: make bench-gate OLD=HEAD~1"; exit 1; }
	go run ./test/bench/gate -old $(OLD) -rounds $(ROUNDS)

clean: ## remove bin/ and out/
	rm -rf bin out
