// SPDX-License-Identifier: Apache-2.0

// Package agent is the node daemon: it follows the cluster, computes the node's state, hands it to
// the data plane, answers the CNI plugin, and reports how the node is.
//
//	source ─ cluster (cluster*.go): the model, one goroutine ─ calc ─► dataplane.Loop ─► driver
//	           ▲                                                           (dataplane*.go)
//	machine ───┘      cni.go: pods come and go      status.go, metrics.go: what is in force
//	chain ─────┘
//
// What needs nothing of the rest is a package below: apiserver (how the API server is found),
// machine (interfaces, routes and neighbours), chain (interfaces of pods that another CNI plugin
// made), nodelock (which of two agents works), problems (what
// is not in force), lbhealth (health checks of load balancers), httpserve (the HTTP ports), api
// (the agent's API), statefile (small files on disk). The answers to `weir why` are internal/why.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"runtime/debug"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weir-net/weir/api/client"
	"github.com/weir-net/weir/internal/agent/api"
	"github.com/weir-net/weir/internal/agent/apiserver"
	"github.com/weir-net/weir/internal/agent/bgp"
	"github.com/weir-net/weir/internal/agent/chain"
	"github.com/weir-net/weir/internal/agent/chain/results"
	"github.com/weir-net/weir/internal/agent/conflist"
	"github.com/weir-net/weir/internal/agent/datastore"
	"github.com/weir-net/weir/internal/agent/flowapi"
	"github.com/weir-net/weir/internal/agent/flowlog"
	"github.com/weir-net/weir/internal/agent/httpserve"
	"github.com/weir-net/weir/internal/agent/lbhealth"
	"github.com/weir-net/weir/internal/agent/machine"
	"github.com/weir-net/weir/internal/agent/metrics"
	"github.com/weir-net/weir/internal/agent/nodelock"
	"github.com/weir-net/weir/internal/agent/nri"
	"github.com/weir-net/weir/internal/agent/podevents"
	"github.com/weir-net/weir/internal/agent/problems"
	"github.com/weir-net/weir/internal/agent/remembered"
	"github.com/weir-net/weir/internal/agent/source"
	"github.com/weir-net/weir/internal/agent/tablesize"
	"github.com/weir-net/weir/internal/agent/takeover"
	"github.com/weir-net/weir/internal/agent/vmaddr"
	"github.com/weir-net/weir/internal/agent/vmflows"
	apiwire "github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/announce"
	"github.com/weir-net/weir/internal/bgp/feed"
	"github.com/weir-net/weir/internal/cni"
	"github.com/weir-net/weir/internal/cni/wire"
	"github.com/weir-net/weir/internal/config"
	"github.com/weir-net/weir/internal/conntrack"
	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowtable"
	"github.com/weir-net/weir/internal/dataplane/ebpf/object"
	"github.com/weir-net/weir/internal/events"
	"github.com/weir-net/weir/internal/gctuner"
	"github.com/weir-net/weir/internal/ipam"
	"github.com/weir-net/weir/internal/ipam/mirror"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/kubeproxy"
	"github.com/weir-net/weir/internal/localsock"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodeprobe"
	"github.com/weir-net/weir/internal/peerauth/trust"
	"github.com/weir-net/weir/internal/why"
	"github.com/weir-net/weir/internal/wireguard"
)

// Options say where an agent works. All paths are absolute; nothing is written anywhere else.
type Options struct {
	Node       string // name of the Node object
	Kubeconfig string // empty = the pod's service account
	Environ    []string
	Log        *slog.Logger

	StateDir   string // survives a reboot
	RunDir     string // does not
	BPFFS      string // folder for pins on a BPF file system
	BPFFSMount string // where one is mounted when there is none; empty = it must be there
	Cgroup     string // folder of the unified hierarchy; empty = configuration, else found
	CNIConfDir string
	PeersDir   string      // what controllers and fan-outs are known by, and the tokens for them; see package trust
	FanOut     source.Mode // from whom the agent has the cluster
	LastResort bool        // it reads the API server in its turn where no fan-out can be reached

	// GCTuner gets to know when changes are over, and runs once the first state is in place; nil =
	// the runtime does as it likes.
	GCTuner *gctuner.Collector
}

// windDown bounds how long an agent that was asked to hand over finishes what it does.
const windDown = 2 * time.Second

// Default paths.
const (
	DefaultStateDir   = "/var/lib/weir"
	DefaultRunDir     = apiwire.DefaultRunDir
	DefaultBPFFS      = "/sys/fs/bpf/weir"
	DefaultBPFFSMount = "/sys/fs/bpf"
	DefaultCNIConfDir = "/etc/cni/net.d"
)

// ipamDir is below StateDir.
const ipamDir = "ipam"

// Agent is the node daemon.
type Agent struct {
	opts           Options
	log            *slog.Logger
	clients        *client.Clients
	servers        *apiserver.Dialer
	reached        apiserver.Reached
	source         *source.Chooser // of the cluster
	claims         *remembered.Claims
	driver         dataPlane
	programs       func(context.Context) error // waits for what the kernel says of the programs; nil = that is known
	kernelFindings []kernel.Finding
	preloaded      *object.Preloaded // programs of another layout of maps than the one in force
	planes         *planeChooser
	limits         problems.NFTables
	loop           *dataplane.Loop
	cluster        *cluster
	wireguard      *wireguard.Manager
	announcer      *announce.Announcer
	prober         *nodeprobe.Prober
	bgp            *feed.Agent // the node's BGP process
	bgpStatuses    *bgp.Writer
	ipam           *ipam.Allocator
	cni            *cni.Server
	machines       *vmaddr.Machines
	machineFlows   *vmflows.Server
	conf           conflist.File
	lastGood       *remembered.LastGood
	conntrackSize  *tablesize.Size
	flows          *flowlog.Log
	flowAPI        *flowapi.API
	events         *events.Hub
	why            *why.Engine
	proxies        *kubeproxy.Watch
	before         *takeover.Node
	// serviceChecks is nil before load balancers are answered.
	serviceChecks   atomic.Pointer[lbhealth.ServiceChecks]
	started         time.Time
	published       published
	podEvents       *podevents.Writer
	programming     *metrics.Programming
	handshakes      *metrics.Handshakes
	nri             *nri.Plugin // holds the start of pods; nil = Weir's own CNI plugin does
	datastore       *datastore.Follower
	mirror          *mirror.Mirror
	nextLacksIPIP   atomic.Bool            // the data plane that is about to carry packets cannot take IP in IP
	changing        atomic.Pointer[string] // the data plane that is about to carry packets; nil = the node has the one that it is to have
	statusDue       chan struct{}          // publish the status soon
	checksDue       chan struct{}          // look at the health checks of Services
	familiesChanged chan struct{}          // look at the families that pods get

	metricsTLS httpserve.MetricsTLS
	lock       *nodelock.Lock
}

// New checks the kernel, loads the programs and connects everything, and begins to read the cluster
// meanwhile. Where programs of an earlier agent evaluate packets, those of this one are loaded
// while Run works. It attaches and writes nothing: what an earlier agent left goes on until Run has
// read the cluster.
func New(ctx context.Context, o Options) (_ *Agent, err error) {
	a := &Agent{opts: o, log: o.Log, started: time.Now(), statusDue: make(chan struct{}, 1), checksDue: make(chan struct{}, 1), familiesChanged: make(chan struct{}, 1), conf: conflist.File{Dir: o.CNIConfDir}}
	a.why = &why.Engine{Node: o.Node, Agent: whyAgent{a}}
	reading, stop := context.WithCancel(ctx)
	defer func() {
		if err != nil {
			stop()
		}
	}()
	findings, lacks := kernel.Probe()
	a.kernelFindings = findings
	defer func() {
		if err != nil {
			a.preloaded.Close()
		}
	}()
	if err := a.acquireNode(ctx, reading); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			a.lock.Close()
		}
	}()
	a.before = takeover.Open(o.Environ, o.Node, o.CNIConfDir, a.clients.Dynamic, o.Log)
	a.planes = openPlaneChooser(o.StateDir, o.BPFFS, o.Log)
	began := a.planes.choice
	release := conntrack.Release
	if a.planes.choice.Other { // a change was broken off, perhaps: connections stay apart until it is done, which ends with Release
		release = conntrack.ReleaseHold
	}
	if err := release(); err != nil {
		o.Log.Warn("a change of the data plane was broken off", "error", err)
	}
	a.lastGood = remembered.OpenLastGood(o.StateDir, o.Log)
	a.conntrackSize = tablesize.Open(o.StateDir, o.Log)
	resolver := config.New(o.Node, o.Environ, a.lastGood.Load())
	resolver.ReadLinux(kernel.Sysctl)
	atStart := resolver.AtStart()
	if err := a.openDataPlane(lacks, atStart); err != nil {
		return nil, errors.Join(err, lacks)
	}
	if began.Known && a.planes.choice.Other {
		a.noteChanging(a.planes.choice.NFTables)
	}
	a.loop = dataplane.NewLoop(a.driver, o.Log.With("part", "dataplane"))
	a.loop.Settled = o.GCTuner.Settled
	a.cluster = newCluster(o.Node, a.loop, resolver, o.Log)
	a.programming, a.handshakes = metrics.NewProgramming(), metrics.NewHandshakes()
	a.cluster.programmed = a.programming.Note
	a.cluster.opened = atStart.Settings
	if a.cluster.opened.Chained {
		if a.cluster.chain, err = chain.New(o.Log.With("part", "chain")); err != nil {
			return nil, errors.Join(err, a.driver.Close())
		}
		a.cluster.results = results.New(results.Dir, o.Log.With("part", "chain"))
	}
	a.openWireGuard()
	a.cluster.changed, a.cluster.reached = a.noteChange, a.reached.Addrs
	a.cluster.noteConfig, a.cluster.noteClaims = a.lastGood.Note, a.claims.Note
	a.cluster.noteEndpoints = a.source.SetEndpoints
	a.reached.OnChange(a.cluster.noteLocal)
	a.events = events.NewHub(o.Node, eventNames{a.cluster, a.source}, a.driver.Listen, o.Log.With("part", "events"))
	a.keepFlows(atStart)
	a.announcer = announce.New(announce.Config{Log: o.Log.With("part", "announce"), Links: a.cluster.uplinks, Silent: a.cluster.noteSilent})
	a.cluster.announce = a.announcer.Update
	a.prober = nodeprobe.New(nodeprobe.Config{Log: o.Log.With("part", "nodeprobe"), Down: a.cluster.noteDown})
	a.cluster.probe = a.prober.Update
	a.bgp = &feed.Agent{Log: o.Log.With("part", "bgp")}
	a.cluster.noteBGP = a.noteBGP
	a.bgpStatuses = &bgp.Writer{Node: o.Node, API: a.clients.Dynamic, Process: a.bgp, State: a.cluster.state, Peers: a.cluster.bgpPeers, Log: o.Log.With("part", "bgp")}
	a.datastore = datastore.New(a.clients.Dynamic, o.Log.With("part", "datastore"))
	if err := a.openPods(); err != nil {
		return nil, errors.Join(err, a.driver.Close())
	}
	return a, nil
}

// readWithin bounds how long another agent of this node goes on working while this one reads the
// cluster.
const readWithin = 20 * time.Second

// acquireNode connects to the API server and begins to read the cluster, and makes this agent the
// one of its node that works. Until it returns, nothing is written on the node.
func (a *Agent) acquireNode(ctx, reading context.Context) error {
	idle := nodelock.OnlyWaits()
	t, held, err := nodelock.Open(a.opts.RunDir, a.log.With("part", "nodelock"))
	if err != nil {
		return err
	}
	a.lock = t
	defer func() {
		if err != nil {
			t.Close()
		}
	}()
	if idle {
		if err = t.Acquire(ctx, false, func(context.Context) {}); err != nil {
			return err
		}
	}
	if err = a.connect(ctx); err != nil {
		return err
	}
	a.source.Start(reading)
	if !held && !idle {
		err = t.Acquire(ctx, true, func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, readWithin)
			defer cancel()
			if err := a.source.AwaitRead(ctx); err != nil {
				a.log.Warn("taking the place of the other agent before the cluster was read", "error", err)
			}
			a.preload()
		})
		if err != nil {
			return err
		}
	}
	err = t.Listen()
	return err
}

// openDataPlane opens the node's data plane: nftables, too, where the kernel has all that was
// looked for and does not take the programs.
func (a *Agent) openDataPlane(lacks error, e config.Effective) error {
	nftables := a.planes.choose(e, lacks)
	var err error
	switch {
	case !nftables:
		var d ebpfPlane
		if d, err = a.openEBPF(e); err == nil {
			a.driver, a.programs = d, d.Loaded
		}
	case lacks == nil && !e.NFTables: // as before: whether that still is so
		a.programs = a.tryPrograms
	}
	if errors.Is(err, ebpf.ErrRefused) {
		nftables = a.planes.choose(e, err)
	}
	if nftables {
		a.preloaded.Close()
		a.driver, err = a.openNFTables()
	}
	return err
}

func (a *Agent) connect(ctx context.Context) error {
	cfg, err := client.LoadConfig(a.opts.Kubeconfig)
	if err != nil {
		return err
	}
	a.servers = apiserver.NewDialer(filepath.Join(a.opts.StateDir, "apiservers.json"), a.log)
	a.servers.FreeFlows = func(to []netip.AddrPort) (int, error) { return flowtable.Free(a.opts.BPFFS, to) }
	a.servers.FreeRoutes("")
	// It takes a while where there are many; a dial that does not get through asks again.
	go a.servers.FreeConnections()
	cfg.Dial = a.reached.Remember(a.servers.Dial)
	if a.clients, err = client.New(cfg, "weir-agent"); err != nil {
		return err
	}
	a.claims = remembered.NewClaims(filepath.Join(a.opts.StateDir, "nodes.json"), a.log)
	a.source, err = source.New(ctx, source.Connect(a.opts.FanOut, a.opts.Node, a.clients, trust.Folder(a.opts.PeersDir),
		filepath.Join(a.opts.StateDir, "fanouts.json"), a.opts.LastResort, a.claims.All,
		func(ctx context.Context, f func(*model.Cluster)) error { return a.cluster.look(ctx, f) }, a.log))
	return err
}

// Run works until ctx ends. The data plane goes on without it.
func (a *Agent) Run(ctx context.Context) error {
	endpoints, err := a.restore(ctx)
	if errors.Is(err, cni.ErrNotRestored) {
		return err // a state without them would cut all pods off; the next start looks again
	}
	if err != nil {
		a.log.Error("some endpoints could not be restored as they were", "error", err)
	}
	a.cluster.restore(endpoints)
	a.log.Info("starting", "node", a.opts.Node, "kernel", kernel.Release(), "endpoints", len(endpoints))
	socket := filepath.Join(a.opts.RunDir, filepath.Base(wire.DefaultSocket))
	listener, err := localsock.Listen(socket)
	if err != nil {
		return err
	}
	watcher, err := machine.New(a.log)
	if err == nil {
		err = a.lock.NoteSocket(socket)
	}
	if err != nil {
		listener.Close()
		return err
	}
	a.cluster.machine = watcher
	a.watchProxies()
	g, ctx := errgroup.WithContext(ctx)
	run := func(what string, f func(context.Context) error) {
		g.Go(func() error {
			if err := f(ctx); err != nil && ctx.Err() == nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			return nil
		})
	}
	handedOver := make(chan struct{})
	run("working alone on the node", func(ctx context.Context) error {
		err := a.lock.AwaitHandOver(ctx)
		if errors.Is(err, nodelock.ErrHandOver) {
			close(handedOver)
		}
		return err
	})
	run("watching the node's interfaces", func(ctx context.Context) error { return watcher.Run(ctx, a.cluster.noteLocal) })
	run("watching the cluster", func(ctx context.Context) error { return a.source.Run(ctx, a.cluster.applyBatch) })
	run("computing the node's state", a.cluster.run)
	run("applying the node's state", a.loop.Run)
	run("measuring how long changes take", func(ctx context.Context) error {
		return a.programming.Run(ctx, func(ctx context.Context, gen uint64) error {
			return a.loop.Wait(ctx, gen, func(*dataplane.KeyError) bool { return false })
		})
	})
	run("keeping the data plane", a.driver.Run)
	run("choosing the data plane", a.reconcilePlane)
	run("encrypting", a.runWireGuard)
	run("changing keys", a.changeKeys)
	run("announcing addresses", a.announcer.Run)
	run("probing nodes with egress gateways", a.prober.Run)
	run("telling the BGP process", func(ctx context.Context) error {
		return a.bgp.Serve(ctx, filepath.Join(a.opts.RunDir, feed.SocketDir, feed.SocketName))
	})
	run("filling CalicoNodeStatuses", a.bgpStatuses.Run)
	run("looking after kube-proxies", a.proxies.Run)
	run("following the lock of the datastore", a.datastore.Run)
	run("keeping blocks of addresses", a.ipam.Run)
	run("showing clients the use of addresses", a.mirror.Run)
	run("following virtual machines", a.machines.Run)
	run("answering the CNI plugin", func(ctx context.Context) error { return a.cni.Serve(ctx, listener) })
	if a.cluster.chain == nil {
		run("writing the network configuration", func(ctx context.Context) error {
			return a.conf.Keep(ctx, socket, a.ready, a.podFamilies, a.familiesChanged, a.log)
		})
	} else {
		run("looking for interfaces of pods", func(ctx context.Context) error { return a.cluster.chain.Run(ctx, a.cluster.noteLocal) })
		run("following results of CNI plugins", func(ctx context.Context) error { return a.cluster.results.Run(ctx, a.cluster.noteLocal) })
		run("holding the start of pods", a.nri.Run)
	}
	run("looking for lost addresses", a.cni.Run)
	run("removing what another plugin left", func(ctx context.Context) error { return a.before.Run(ctx, a.ready) })
	run("writing events about pods", a.podEvents.Run)
	run("serving health and metrics", a.serve)
	run("answering load balancers", a.serveLoadBalancers)
	run("answering questions", func(ctx context.Context) error {
		return api.ServeSocket(ctx, filepath.Join(a.opts.RunDir, apiwire.SocketName), api.NewMux(a.apiHandlers()))
	})
	run("answering questions of controllers", a.serveControllers)
	run("giving the store its flow records", a.serveStore)
	run("reading events", a.readEvents)
	run("logging events", a.logEvents)
	run("keeping records of flows", a.flows.Run)
	run("publishing the node's status", a.publish)
	run("collecting garbage", a.tuneGC)
	run("sizing the connection table", func(ctx context.Context) error {
		return a.conntrackSize.Run(ctx, func() config.Effective { return a.cluster.snapshot().config.Effective }, a.driver.Pressures, ErrRestart)
	})
	ended := make(chan error, 1)
	go func() { ended <- g.Wait() }()
	select {
	case err = <-ended:
	case <-handedOver:
		select {
		case err = <-ended:
		case <-time.After(windDown):
			a.log.Warn("handing over before all work has ended")
			return nodelock.ErrHandOver
		}
	}
	a.cni.Close()
	err = errors.Join(err, a.driver.Close())
	if !errors.Is(err, ErrRestart) {
		a.lock.Close()
	}
	return err
}

// RestartEnviron is the environment with which this process starts again, after Run returned err:
// ErrRestart or ErrHandOver.
func (a *Agent) RestartEnviron(err error) []string {
	return a.lock.RestartEnviron(errors.Is(err, nodelock.ErrHandOver))
}

// tuneGC gives the memory of the start back to the kernel, which is more than what is needed
// later, that of the program included, and then has the collector of garbage begin when changes are
// over.
func (a *Agent) tuneGC(ctx context.Context) error {
	for a.loop.Applied() == 0 {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
	debug.FreeOSMemory()
	if err := kernel.ForgetProgramPages(); err != nil {
		a.log.Debug("pages of the program stay in memory", "error", err)
	}
	return a.opts.GCTuner.Run(ctx)
}

// podFamilies are the families of which pods get an address without asking for one. IPv6 is where
// the node carries it, and a pool has some for it; IPv4 always but on nodes without it, as those of
// clusters of IPv6 alone are.
func (a *Agent) podFamilies() conflist.Families {
	six := a.cluster.cniSettings().IPv6 && a.ipam.Gives(true)
	return conflist.Families{IPv4: !six || a.cluster.hasIPv4() || a.ipam.Gives(false), IPv6: six}
}
