// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"bufio"
	"cmp"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/dataplane"
	"github.com/weir-net/weir/internal/dataplane/ebpf"
	"github.com/weir-net/weir/internal/dataplane/ebpf/flowhandover"
	"github.com/weir-net/weir/internal/dataplane/nft"
	"github.com/weir-net/weir/internal/dataplane/nft/hostnet"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/reason"
)

// driverProcess is a process of this test binary that runs the driver in a node's network
// namespace. It gets whole states on its standard input and answers each with a line.
type driverProcess struct {
	t     *testing.T
	node  *node
	bpffs string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	in    *gob.Encoder
	out   *bufio.Scanner
	last  applied
	flows int    // entries of the connection table; 0 = 65,536
	plane string // which driver it is; empty = the test's
	same  bool   // it is the one that was there before
	live  bool   // it changes its data plane without a new start
	holds bool   // a live one loads its programs when it is ordered to go on
	crypt string // folder of keys where it encrypts
	why   string // socket at which it answers weir why
	leads bool   // its programs lead pods out by egress gateways
	times bool   // what pods send is held to their bandwidth by departure times
	runs  bool   // it repairs what it finds broken, as an agent's does (of the eBPF driver; the other one always does)
	// takesFrom is the address of Calico's device on a node that it takes over; empty = none.
	takesFrom string
}

type applied struct {
	Err    string
	Writes uint64
	Fallen []string // clients for which direct server return does not work
	Tables uint64   // how often a table of nftables was found broken
	Shares uint64   // packets dropped because their pod has its share of the connection table
	Held   []string // such pods
	Denied uint64   // packets that policy denied, as the nftables driver counts
	Spent  []string // pods that used up their ports for source NAT a moment ago
	NoIPIP bool     // the node cannot take IP in IP

	Arrival map[string]string        // of the eBPF driver: Status.Arrival
	Late    uint64                   // Status.Late
	Dropped map[reason.Reason]uint64 // packets
}

func startDriver(t *testing.T, n *node) *driverProcess {
	t.Helper()
	d := &driverProcess{t: t, node: n, bpffs: filepath.Join("/run", n.netns+"-bpf")}
	if err := os.Mkdir(d.bpffs, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("bpf", d.bpffs, "bpf", 0, "mode=0700"); err != nil {
		t.Fatalf("mounting a bpffs: %v", err)
	}
	t.Cleanup(func() {
		d.kill()
		if err := errors.Join(unmount(d.bpffs), os.Remove(d.bpffs)); err != nil {
			t.Errorf("removing %s: %v", d.bpffs, err)
		}
	})
	d.start()
	return d
}

func (d *driverProcess) start() {
	d.t.Helper()
	plane, over := d.plane, "yes"
	if plane == "" {
		plane = d.node.dataplane()
	}
	if d.plane == "" || d.same {
		over = ""
	}
	if d.live {
		d.spawn("WEIR_TEST_DRIVER=live", "WEIR_TEST_PLANE="+plane, fmt.Sprintf("WEIR_TEST_HOLDS=%t", d.holds))
		return
	}
	d.spawn("WEIR_TEST_DRIVER="+plane, "WEIR_TEST_TAKEOVER="+over, fmt.Sprintf("WEIR_TEST_RUNS=%t", d.runs))
}

// spawn starts the process with an environment that says what it does.
func (d *driverProcess) spawn(env ...string) {
	d.t.Helper()
	d.cmd = exec.Command("nsenter", "--net=/run/netns/"+d.node.netns, os.Args[0])
	d.cmd.Env = append(append(os.Environ(), "WEIR_TEST_BPFFS="+filepath.Join(d.bpffs, "weir"), "WEIR_TEST_CGROUP="+d.node.cgroup,
		fmt.Sprintf("WEIR_TEST_FLOWS=%d", d.flows), "WEIR_TEST_CRYPT="+d.crypt, "WEIR_TEST_WHY="+d.why, fmt.Sprintf("WEIR_TEST_GATEWAYS=%t", d.leads), fmt.Sprintf("WEIR_TEST_DEPARTURES=%t", d.times), "WEIR_TEST_NODE="+d.node.name, "WEIR_TEST_CALICO="+d.takesFrom), env...)
	d.cmd.Stderr = os.Stderr
	stdin, err := d.cmd.StdinPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	stdout, err := d.cmd.StdoutPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	d.stdin, d.in, d.out = stdin, gob.NewEncoder(stdin), bufio.NewScanner(stdout)
}

// kill ends the process without any warning.
func (d *driverProcess) kill() {
	if d.cmd != nil {
		d.cmd.Process.Signal(syscall.SIGKILL)
		d.cmd.Wait()
		d.cmd = nil
	}
}

// stop has the driver stand still until goOn.
func (d *driverProcess) stop() { d.signal(syscall.SIGSTOP) }
func (d *driverProcess) goOn() { d.signal(syscall.SIGCONT) }

func (d *driverProcess) signal(s syscall.Signal) {
	d.t.Helper()
	if err := d.cmd.Process.Signal(s); err != nil {
		d.t.Fatalf("%s: %v", d.node.name, err)
	}
}

func (d *driverProcess) apply(s *nodestate.State) {
	d.t.Helper()
	if d.live {
		live{d}.do(order{State: s, Both: true})
		return
	}
	if err := d.in.Encode(s); err != nil {
		d.t.Fatalf("%s: %v", d.node.name, err)
	}
	if !d.out.Scan() {
		d.t.Fatalf("%s: the driver is gone: %v", d.node.name, d.out.Err())
	}
	d.last = applied{}
	if err := json.Unmarshal(d.out.Bytes(), &d.last); err != nil {
		d.t.Fatal(err)
	}
	if d.last.Err != "" {
		d.t.Fatalf("%s: %s", d.node.name, d.last.Err)
	}
}

// writes says how many map entries the process has written since it started.
func (d *driverProcess) writes() uint64 { return d.last.Writes }

func driverMain() error {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: testLevel()}))
	switch os.Getenv("WEIR_TEST_DRIVER") {
	case "nft":
		return nftMain(log)
	case "wireguard":
		return wireGuardMain(log)
	case "bgp":
		return bgpMain(log)
	case "live":
		return liveMain(log)
	case "leave":
		return leaveMain()
	}
	return ebpfMain(log)
}

// openEBPF opens the eBPF driver, as one that takes over from nftables or not.
func openEBPF(log *slog.Logger, takesOver bool, attachAtOnce int) (*ebpf.Driver, error) {
	o, err := ebpfOptions(log)
	if err != nil {
		return nil, err
	}
	o.AttachAtOnce, o.Import = attachAtOnce, map[bool]flowhandover.ImportScope{true: flowhandover.ImportAll}[takesOver]
	return ebpf.New(o)
}

func ebpfOptions(log *slog.Logger) (o ebpf.Options, err error) {
	flows, err := strconv.ParseUint(os.Getenv("WEIR_TEST_FLOWS"), 10, 32)
	if err != nil {
		return o, err
	}
	flows = cmp.Or(flows, 65536)
	return ebpf.Options{Logger: log, BPFFS: os.Getenv("WEIR_TEST_BPFFS"), Cgroup: os.Getenv("WEIR_TEST_CGROUP"),
		Sizes: map[string]uint32{"weir_flows": uint32(flows), "weir_flows_new": uint32(max(16384, flows/4))}, SetRetval: true, NoTCX: kernel.Lacks(kernel.FeatureTCX), Left: nft.Left, Gateways: os.Getenv("WEIR_TEST_GATEWAYS") == "true",
		Departures: os.Getenv("WEIR_TEST_DEPARTURES") == "true"}, nil
}

// openNFT opens the nftables driver, as one that takes over from eBPF or not.
func openNFT(log *slog.Logger, takesOver bool) (*nft.Driver, error) {
	flows, err := strconv.ParseUint(os.Getenv("WEIR_TEST_FLOWS"), 10, 32)
	if err != nil {
		return nil, err
	}
	o := nft.Options{Logger: log, Connections: uint32(flows), Before: func() {
		if err := flowhandover.ExportEarly(os.Getenv("WEIR_TEST_BPFFS"), log); takesOver && err != nil {
			panic(err)
		}
	}}
	if os.Getenv("WEIR_TEST_CALICO") != "" {
		o.Beside = hostnet.CalicoMAC
	}
	return nft.New(o)
}

// applyWhole applies a state in as many pieces as the driver likes.
func applyWhole(d dataplane.Driver, s *nodestate.State) error {
	for {
		if err := d.Apply(context.Background(), s, nodestate.All()); !errors.Is(err, dataplane.ErrUnfinished) {
			return err
		}
	}
}

func ebpfMain(log *slog.Logger) error {
	drv, err := openEBPF(log, takesOver(), 0)
	if err != nil {
		return err
	}
	defer drv.Close()
	if os.Getenv("WEIR_TEST_RUNS") == "true" {
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		go drv.Run(ctx)
	}
	explain := answersWhy(ebpfPlane{drv})
	return serveStates(func(s *nodestate.State, a *applied) error {
		defer explain(s)
		if err := applyWhole(drv, s); err != nil {
			a.Err = err.Error()
		} else if err := removeOther(func() error { return nft.Remove(context.Background()) }); err != nil {
			a.Err = err.Error()
		}
		st := drv.Status()
		a.Writes, a.Arrival, a.Late = st.Writes, st.Arrival, st.Late
		fallen, err := drv.DSRFallback()
		if err != nil {
			return err
		}
		for _, c := range fallen.Clients {
			a.Fallen = append(a.Fallen, four(c.String()))
		}
		return tellDrops(drv, a)
	})
}

func tellDrops(drv *ebpf.Driver, a *applied) error {
	drops, err := drv.Drops()
	if err != nil {
		return err
	}
	a.Dropped = map[reason.Reason]uint64{}
	for _, d := range drops {
		a.Dropped[reason.Reason(d.Reason)] += d.Packets
	}
	a.Shares = a.Dropped[reason.Share]
	spent, err := drv.ExhaustedPods()
	for _, p := range spent {
		if p.Recent {
			a.Spent = append(a.Spent, four(p.Addr.String()))
		}
	}
	if err != nil {
		return err
	}
	held, err := drv.Held()
	for _, h := range held {
		a.Held = append(a.Held, four(h.Addr.String()))
	}
	return err
}

func nftMain(log *slog.Logger) error {
	drv, err := openNFT(log, takesOver())
	if err != nil {
		return err
	}
	defer drv.Close()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go drv.Run(ctx)
	calico, err := openBefore()
	if err != nil {
		return err
	}
	explain := answersWhy(nftPlane{drv})
	return serveStates(func(s *nodestate.State, a *applied) error {
		defer explain(s)
		if err := calico.begin(); err != nil {
			return err
		}
		if err := drv.Apply(context.Background(), s, nodestate.All()); err != nil {
			a.Err = err.Error()
		} else if err := calico.end(); err != nil {
			a.Err = err.Error()
		} else if err := removeOther(func() error { return giveWay(drv, log) }); err != nil {
			a.Err = err.Error()
		}
		st := drv.Status()
		a.Writes, a.Tables, a.NoIPIP = st.Writes, st.Repairs["table"], st.NoIPIP != ""
		spent, err := drv.ExhaustedPods()
		for _, p := range spent {
			if p.Recent && p.Refused > 0 {
				a.Spent = append(a.Spent, four(p.Addr.String()))
			}
		}
		held, err4 := drv.Held()
		for _, h := range held {
			a.Held = append(a.Held, four(h.Addr.String()))
		}
		drops, err3 := drv.Drops()
		a.Dropped = map[reason.Reason]uint64{}
		for _, d := range drops {
			a.Denied += d.Packets
			a.Dropped[reason.Reason(d.Reason)] += d.Packets
		}
		a.Shares = a.Dropped[reason.Share]
		fallen, err2 := drv.DSRFallback()
		for _, c := range fallen.Clients {
			a.Fallen = append(a.Fallen, four(c.String()))
		}
		return errors.Join(err, err2, err3, err4)
	})
}

// takesOver reports whether another data plane carries the node's packets until the first state is
// applied.
func takesOver() bool { return os.Getenv("WEIR_TEST_TAKEOVER") != "" }

var removed bool

// removeOther takes away what another data plane left, once, some time after the first state was
// applied.
func removeOther(remove func() error) error {
	if removed || !takesOver() {
		return nil
	}
	removed = true
	time.Sleep(200 * time.Millisecond) // an agent looks no sooner
	return remove()
}

// giveWay is what an agent does with what is left of the eBPF data plane.
func giveWay(drv *nft.Driver, log *slog.Logger) error {
	dir := os.Getenv("WEIR_TEST_BPFFS")
	err := flowhandover.ExportFlows(context.Background(), dir, drv, log)
	return errors.Join(err, ebpf.Remove(dir))
}

// serveStates applies what comes until there is no more.
func serveStates(apply func(*nodestate.State, *applied) error) error {
	in, out := gob.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	encrypts := encrypter()
	for {
		var s nodestate.State
		if err := in.Decode(&s); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		var a applied
		if err := encrypts.Before(&s); err != nil {
			return err
		}
		if err := apply(&s, &a); err != nil {
			return err
		}
		if err := encrypts.After(&s); err != nil {
			return err
		}
		if err := out.Encode(a); err != nil {
			return err
		}
	}
}

func removeCgroup(path string) error {
	var err error
	for range 3000 { // its processes are just ending
		if err = os.Remove(path); err == nil {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return err
}

func TestMain(m *testing.M) {
	switch {
	case os.Getenv("WEIR_TEST_WORKER") != "":
		workerMain()
	case os.Getenv("WEIR_TEST_DRIVER") != "":
		if err := driverMain(); err != nil {
			fmt.Fprintln(os.Stderr, "driver:", err)
			os.Exit(1)
		}
	default:
		moreAtOnce()
		if err := removeLeftovers(); err != nil {
			fmt.Fprintln(os.Stderr, "removing what a run left that was killed:", err)
		}
		os.Exit(m.Run())
	}
}

// moreAtOnce lets two tests a CPU run at once, unless -parallel says how many: they wait half of
// the time.
func moreAtOnce() {
	flag.Parse()
	said := false
	flag.Visit(func(f *flag.Flag) { said = said || f.Name == "test.parallel" })
	if said {
		return
	}
	if err := flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0))); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// testLevel is how much drivers log: WEIR_TEST_LOG=info for more.
func testLevel() slog.Level {
	level := slog.LevelWarn
	_ = level.UnmarshalText([]byte(os.Getenv("WEIR_TEST_LOG")))
	return level
}
