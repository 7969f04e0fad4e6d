// SPDX-License-Identifier: Apache-2.0

// Package routertest starts real routers for tests, BIRD, FRR and OpenBGPD, in network namespaces.
// Those of this Debian are brought by make setup, those of a newer one by hack/routers.sh.
package routertest

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-net/weir/internal/nettest"
)

// Kinds are the programs of this Debian.
var Kinds = []string{"bird", "frr", "openbgpd"}

// Newer are those of a newer one, which are in the folder that NewerVariable names.
var Newer = []string{"bird-3", "frr-10", "openbgpd-8"}

// NewerVariable is the environment's that names the folder of hack/routers.sh.
const NewerVariable = "WEIR_ROUTERS"

// All are Kinds, and Newer where the environment has them.
func All() []string {
	if os.Getenv(NewerVariable) == "" {
		return Kinds
	}
	return slices.Concat(Kinds, Newer)
}

// Feature is something that not every kind of router has.
type Feature string

// The features.
const (
	BFD       Feature = "BFD"
	LongLived Feature = "long-lived graceful restart"
	Kernel    Feature = "routes in the kernel"
	Restarts  Feature = "routes of its own that outlive it"
)

// Has reports whether a kind of router has a feature.
func Has(kind string, f Feature) bool {
	switch kind {
	case "openbgpd": // 7.7 on Linux
		return false
	case "openbgpd-8":
		return f == Kernel
	}
	return true
}

// The folders of programs: of the machine, and of FRR's.
const (
	sbin   = "/usr/sbin"
	frrDir = "/usr/lib/frr"
)

// program is what a kind of router is: whose language it speaks, the root folder where it is, and
// the folder of its programs within that.
func program(kind string) (language, root, dir string) {
	language, _, newer := strings.Cut(kind, "-")
	if newer {
		root = os.Getenv(NewerVariable)
	}
	switch {
	case language == "frr":
		dir = frrDir
	case language == "openbgpd" && !newer: // make setup takes it out of its package
		if dir = os.Getenv("WEIR_CACHE"); dir == "" {
			dir = filepath.Join(os.Getenv("HOME"), ".cache/weir")
		}
	default:
		dir = sbin
	}
	return language, root, dir
}

// Need skips a test where a kind of router is not installed.
func Need(t testing.TB, kind string) {
	t.Helper()
	language, root, dir := program(kind)
	name := "bgpd"
	if language == "bird" {
		name = "bird"
	}
	if _, err := os.Stat(filepath.Join(root, dir, name)); err != nil {
		t.Skipf("NOT RUN: %v: make setup or hack/routers.sh brings it", err)
	}
}

// Neighbour is a session of a router.
type Neighbour struct {
	Local, Remote netip.Addr
	ASN           uint32
	Password      string
	// BFD: its failure is detected by BFD.
	BFD bool
	// Multihop: next hops need not be on a link.
	Multihop bool
	// Client: routes are reflected to it.
	Client bool
	// Waits: OpenBGPD leaves it to the neighbour to begin. Where both begin at once either may end
	// the other's connection when it is established, and what is stale by then is given up.
	Waits bool
}

// Config is what a router does.
type Config struct {
	ASN        uint32
	ID         netip.Addr
	Neighbours []Neighbour
	// Networks are advertised; the router has them as far as it is concerned.
	Networks []netip.Prefix
	// Communities are standard ones, aa:nn, of what it advertises.
	Communities []string
	// Hold is the hold time, in seconds; 0 = the router's.
	Hold int
	// Prepended is what paths have in front that BIRD sends; 0 = nothing.
	Prepended uint32
	// Restart is the time of graceful restart, LongLived that of long-lived graceful restart, in
	// seconds; 0 = the router's, and none.
	Restart, LongLived int
}

// Router is one that runs.
type Router struct {
	Kind string // "bird", "frr" or "openbgpd", of whatever version
	root string // the folder that it takes for /; empty = the machine's
	sbin string // the folder of its programs, within root
	ns   *nettest.Namespace
	dir  string // for its files, within root
	pids []*os.Process
}

// Start starts one in a namespace, until the test ends.
func Start(t *testing.T, ns *nettest.Namespace, kind string, c Config) *Router {
	t.Helper()
	Need(t, kind)
	r := &Router{ns: ns}
	r.Kind, r.root, r.sbin = program(kind)
	made, err := os.MkdirTemp(r.root+"/tmp", "weir-router-") //nolint:usetesting // a path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	dir := strings.TrimPrefix(made, r.root)
	r.dir = dir
	t.Cleanup(func() {
		r.Kill(t)
		os.RemoveAll(made)
	})
	if r.Kind == "bird" {
		r.write(t, "bird.conf", birdConfig(c))
		r.run(t, sbin+"/bird", "-f", "-c", dir+"/bird.conf", "-s", dir+"/bird.ctl", "-P", dir+"/bird.pid")
		return r
	}
	if r.Kind == "openbgpd" {
		r.startOpenBGPD(t, c)
		return r
	}
	r.write(t, "zebra.conf", "hostname r\n")
	r.write(t, "bgpd.conf", frrConfig(c))
	r.write(t, "bfdd.conf", "hostname r\n")
	who := "root"
	if r.root == "" {
		who = "frr"
		r.own(t)
	}
	common := []string{"-u", who, "-g", who, "--vty_socket", dir, "-z", dir + "/z.sock"}
	r.run(t, frrDir+"/zebra", append([]string{"-f", dir + "/zebra.conf", "-i", dir + "/zebra.pid"}, common...)...)
	r.wait(t, "z.sock")
	if slices.ContainsFunc(c.Neighbours, func(n Neighbour) bool { return n.BFD }) {
		args := append([]string{"-f", dir + "/bfdd.conf", "-i", dir + "/bfdd.pid"}, common...)
		if r.root == "" { // 10 has no such socket
			args = append(args, "--bfdctl", dir+"/bfdctl.sock")
		}
		r.run(t, frrDir+"/bfdd", args...)
		r.wait(t, "bfdd.pid")
	}
	r.run(t, frrDir+"/bgpd", append([]string{"-f", dir + "/bgpd.conf", "-i", dir + "/bgpd.pid"}, common...)...)
	return r
}

func (r *Router) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(r.root, r.dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// own gives the files to the user as whom FRR's programs run.
func (r *Router) own(t *testing.T) {
	t.Helper()
	u, err := user.Lookup("frr")
	if err != nil {
		t.Fatal(err)
	}
	uid, err1 := strconv.Atoi(u.Uid)
	gid, err2 := strconv.Atoi(u.Gid)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", "zebra.conf", "bgpd.conf", "bfdd.conf"} {
		if err := os.Chown(filepath.Join(r.dir, name), uid, gid); err != nil {
			t.Fatal(err)
		}
	}
}

func (r *Router) wait(t *testing.T, name string) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(r.root, r.dir, name)); err == nil {
			return
		} else if time.Now().After(end) {
			t.Fatalf("%s: %v", r.Kind, err)
		}
	}
}

func (r *Router) run(t *testing.T, path string, args ...string) {
	t.Helper()
	cmd := exec.Command(path, args...)
	script := r.users()
	if r.root != "" {
		script += `mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && `
	}
	if script != "" {
		script += `exec chroot "${0:-/}" "$@"`
		cmd = exec.Command("unshare", append([]string{"-m", "sh", "-c", script, r.root, path}, args...)...)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	log, err := os.OpenFile(filepath.Join(r.root, r.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	r.ns.Do(t, "starting "+path, cmd.Start)
	r.pids = append(r.pids, cmd.Process)
}

// Kill ends it, with all of its processes at once, without a word to its neighbours.
func (r *Router) Kill(t *testing.T) {
	for _, p := range r.pids {
		_ = syscall.Kill(-p.Pid, syscall.SIGKILL)
		_, _ = p.Wait()
	}
	r.pids = nil
	if t.Failed() {
		if text, err := os.ReadFile(filepath.Join(r.root, r.dir, "log")); err == nil {
			t.Logf("%s: %s", r.Kind, text)
		}
	}
}

// tell gives an order to the router: by birdc, vtysh or bgpctl.
func (r *Router) tell(args ...string) ([]byte, error) {
	switch r.Kind {
	case "bird":
		args = append([]string{sbin + "/birdc", "-s", r.dir + "/bird.ctl"}, args...)
	case "frr":
		args = append([]string{"/usr/bin/vtysh", "--vty_socket", r.dir}, args...)
	default:
		args = append([]string{r.sbin + "/bgpctl", "-s", r.dir + "/ctl"}, args...)
	}
	if r.root != "" {
		args = append([]string{"chroot", r.root}, args...)
	}
	return exec.Command(args[0], args[1:]...).CombinedOutput()
}

// Ask has the router say something, in its own language: birdc's, vtysh's or bgpctl's.
func (r *Router) Ask(bird, frr, openbgpd string) string {
	args := []string{"-r", bird}
	switch r.Kind {
	case "frr":
		args = []string{"-c", frr}
	case "openbgpd":
		args = strings.Fields(openbgpd)
	}
	out, err := r.tell(args...)
	if err != nil {
		return fmt.Sprintf("%v: %s", err, out)
	}
	return string(out)
}

// Knows reports whether the router has a route, which came by BGP.
func (r *Router) Knows(p netip.Prefix) bool {
	out := r.About(p)
	switch r.Kind {
	case "bird":
		return strings.Contains(out, p.String()) && strings.Contains(out, "BGP.origin")
	case "openbgpd":
		return strings.Contains(out, "entry for "+p.String()) && !strings.Contains(out, " LOCAL ")
	}
	return strings.Contains(out, "Paths: (") && !strings.Contains(out, "sourced")
}

// About is what the router says about a route that came by BGP.
func (r *Router) About(p netip.Prefix) string {
	family := "ipv4"
	if p.Addr().Is6() {
		family = "ipv6"
	}
	return names.Replace(r.Ask("show route for "+p.String()+" all", "show bgp "+family+" unicast "+p.String(), "show rib detail "+p.String()))
}

// names gives attributes that BIRD 3 names the names that BIRD 2 has for them, and communities that
// OpenBGPD names their numbers.
var names = strings.NewReplacer("bgp_path: ", "BGP.as_path: ", "bgp_", "BGP.", "GRACEFUL_SHUTDOWN", "65535:0")

// Has reports whether a route has a community, standard or large.
func (r *Router) Has(p netip.Prefix, community string) bool {
	about := r.About(p)
	if r.Kind == "bird" {
		return strings.Contains(about, "("+strings.ReplaceAll(community, ":", ",")+")") || strings.Contains(about, "("+strings.ReplaceAll(community, ":", ", ")+")")
	}
	return slices.Contains(strings.Fields(strings.ReplaceAll(about, ",", " ")), community)
}

// Path is the AS path of a route.
func (r *Router) Path(p netip.Prefix) string {
	lines := strings.Split(r.About(p), "\n")
	for i, line := range lines {
		if _, path, is := strings.Cut(line, "BGP.as_path: "); is {
			return strings.TrimSpace(path)
		}
		// After the peers that it is advertised to.
		if r.Kind == "frr" && strings.Contains(line, " from ") && i > 0 {
			return strings.TrimSpace(lines[i-1])
		}
		if r.Kind == "openbgpd" && strings.Contains(line, "entry for ") && i+1 < len(lines) {
			return strings.TrimSpace(lines[i+1])
		}
	}
	return ""
}

// NextHop is the next hop of a route, as it was sent.
func (r *Router) NextHop(p netip.Prefix) string {
	for line := range strings.Lines(r.About(p)) {
		if _, hop, is := strings.Cut(line, "BGP.next_hop: "); is {
			return strings.Fields(hop)[0]
		}
		if r.Kind == "frr" && strings.Contains(line, " from ") {
			return strings.Fields(line)[0]
		}
		if _, hop, is := strings.Cut(line, " Nexthop "); is {
			return strings.Fields(hop)[0]
		}
	}
	return ""
}

// Preference is the local preference of a route; 0 = it has none.
func (r *Router) Preference(p netip.Prefix) int {
	about := r.About(p)
	for _, before := range []string{"BGP.local_pref: ", "localpref "} {
		if _, after, is := strings.Cut(about, before); is {
			n, _ := strconv.Atoi(strings.FieldsFunc(after, func(c rune) bool { return c < '0' || c > '9' })[0])
			return n
		}
	}
	return 0
}

// Withdraw takes back all that the router advertises.
func (r *Router) Withdraw(t *testing.T, c Config) {
	t.Helper()
	if r.Kind == "bird" {
		for _, of := range []string{"networks4", "networks6"} {
			out, err := r.tell("disable " + of)
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		return
	}
	if r.Kind == "openbgpd" {
		c.Networks = nil
		r.reload(t, c)
		return
	}
	args := []string{"-c", "configure terminal", "-c", fmt.Sprintf("router bgp %d", c.ASN)}
	for _, p := range c.Networks {
		family := "ipv4"
		if p.Addr().Is6() {
			family = "ipv6"
		}
		args = append(args, "-c", "address-family "+family+" unicast", "-c", "no network "+p.String(), "-c", "exit-address-family")
	}
	if out, err := r.tell(args...); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// Configure gives BIRD another configuration. Sessions of which nothing changes but what is sent go
// on.
func (r *Router) Configure(t *testing.T, c Config) {
	t.Helper()
	r.write(t, "bird.conf", birdConfig(c))
	if out, err := r.tell("configure"); err != nil || !strings.Contains(string(out), "Reconfigur") {
		t.Fatalf("%v: %s", err, out)
	}
}

// Leave has BIRD end its sessions in order, and take what it learned out of its kernel's routes.
// FRR's peers would keep its routes then, for its graceful restart.
func (r *Router) Leave(t *testing.T) {
	t.Helper()
	if out, err := r.tell("disable all"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}
