// SPDX-License-Identifier: Apache-2.0

// Package nodespec renders what a node of a lab runs: its files, its mounts and
// its daemons with all their flags. Rendering is pure; package nodeinit carries a
// Spec out.
package nodespec

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/weir-net/weir/lab/internal/pki"
	"github.com/weir-net/weir/lab/internal/plan"
)

// Places inside a node.
const (
	// Base is where the lab's own things are. It is on the node's private /run.
	Base = "/run/weir-lab"
	// Programs is where the lab's programs are mounted.
	Programs = Base + "/bin"
	// WeirPrograms is where Weir's programs are mounted, if there are any.
	WeirPrograms = Base + "/weir"
	// AdminConfig is the administrator's kubeconfig.
	AdminConfig = "/etc/kubernetes/admin.conf"
	// Status is where a node's first process says how its daemons are.
	Status = "/var/lib/weir-lab/status.json"
	// Logs holds one file a daemon.
	Logs = "/var/log"

	containerdSocket = "/run/containerd/containerd.sock"
	pkiDir           = "/etc/kubernetes/pki"
)

// Spec is everything that a node's first process sets up.
type Spec struct {
	Hostname string
	Cgroup   string // its group below the root of every hierarchy
	Var      string // folder of the machine that becomes the node's /var
	Binds    []Bind // in order
	Files    []File
	// MaskedSysctls hold, by path below /proc/sys, settings of the whole machine
	// that the kubelet insists on. The node sees the wanted value; the machine's
	// own stays as it is.
	MaskedSysctls map[string]string
	Daemons       []Daemon
	// ReadOnlyRoot makes everything read-only except what WritablePaths lists.
	ReadOnlyRoot bool
}

// WritablePaths are what a node with a read-only root file system can write to,
// in addition to /proc, /sys, /dev, /tmp and /run.
var WritablePaths = []string{"/var", "/etc/cni", "/etc/kubernetes", "/opt/cni"}

// Bind makes a folder of the machine visible in the node, read-only.
type Bind struct{ From, To string }

// File is written before any daemon starts.
type File struct {
	Path    string
	Mode    uint32
	Content string
}

// Daemon is started, and started again when it ends.
type Daemon struct {
	Name string
	Args []string // Args[0] is the program
	// After are what must answer first: unix://PATH connects, https://… answers 200.
	After []string
}

// Inputs is what the specs of a lab are rendered from.
type Inputs struct {
	Lab      *plan.Lab
	Proxy    plan.Proxy
	Data     string // folder of the machine that holds the nodes' files
	Programs string // folder of the machine that holds the lab's programs
	// Program gives a program's path below Programs.
	Program  func(name string) string
	Folders  []string // folders below Programs that hold programs
	Weir     string   // folder of the machine with Weir's programs, or empty
	MaxFiles uint64   // hard limit of open files
	// FeatureGates are for the API server and its controllers, as their flag has it; empty leaves
	// the defaults.
	FeatureGates string
	// SELinux says that it is in force on the machine.
	SELinux bool
	// ReadOnlyRoot asks for nodes like those of container operating systems.
	ReadOnlyRoot bool
}

// Credentials are the certificates of a lab.
type Credentials struct {
	Authority *pki.Authority
	Admin     []byte // kubeconfig
	server    string // the API server's URL
	tokens    pki.Pair
	issued    map[string]pki.Pair
}

// NewCredentials issues what all nodes of a lab need.
func NewCredentials(l *plan.Lab) (*Credentials, error) {
	a, err := pki.New(l.Name)
	if err != nil {
		return nil, err
	}
	c := &Credentials{Authority: a, issued: map[string]pki.Pair{}}
	if c.tokens, err = pki.ServiceAccountKey(); err != nil {
		return nil, err
	}
	issue := func(key, cn string, org ...string) {
		if err == nil {
			c.issued[key], err = a.Issue(cn, org, nil, nil)
		}
	}
	issue("admin", "admin", "system:masters")
	issue("controller-manager", "system:kube-controller-manager")
	issue("scheduler", "system:kube-scheduler")
	issue("front-proxy", "front-proxy-client")
	issue("apiserver-kubelet", "apiserver-kubelet", "system:masters")
	if err != nil {
		return nil, err
	}
	if c.issued["apiserver"], err = a.Issue("kube-apiserver", nil, apiServerNames, apiServerAddrs(l)); err != nil {
		return nil, err
	}
	for _, m := range l.Nodes() {
		c.issued[m.Name], err = a.Issue("system:node:"+m.Name, []string{"system:nodes"}, []string{m.Name}, append([]netip.Addr{loopback}, m.Addrs()...))
		if err != nil {
			return nil, err
		}
	}
	c.server = l.APIServer()
	c.Admin, err = a.Kubeconfig(c.server, c.issued["admin"])
	return c, err
}

// Render makes the spec of one node.
func Render(in Inputs, c *Credentials, m plan.Machine) (*Spec, error) {
	s := &Spec{
		Hostname:     m.Name,
		Cgroup:       plan.Scoped(in.Lab.Name, m.Name),
		Var:          filepath.Join(in.Data, m.Name, "var"),
		Binds:        []Bind{{From: in.Programs, To: Programs}},
		ReadOnlyRoot: in.ReadOnlyRoot,
		MaskedSysctls: map[string]string{
			"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
			"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
		},
	}
	if in.Weir != "" {
		s.Binds = append(s.Binds, Bind{From: in.Weir, To: WeirPrograms})
	}
	s.file("/etc/hostname", 0o644, m.Name+"\n")
	s.file("/etc/hosts", 0o644, hosts(in.Lab))
	s.file("/etc/resolv.conf", 0o644, "# A lab has no resolver outside the cluster.\n")
	s.file(AdminConfig, 0o600, string(c.Admin))
	s.file(pkiDir+"/ca.crt", 0o644, string(c.Authority.CA().Cert))
	s.pair("kubelet", c.issued[m.Name])

	if m.Role == plan.RoleControlPlane {
		if err := s.controlPlane(in, c); err != nil {
			return nil, err
		}
	}
	if err := s.node(in, c, m); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Spec) file(path string, mode uint32, content string) {
	s.Files = append(s.Files, File{Path: path, Mode: mode, Content: content})
}

func (s *Spec) pair(name string, p pki.Pair) {
	s.file(pkiDir+"/"+name+".crt", 0o644, string(p.Cert))
	s.file(pkiDir+"/"+name+".key", 0o600, string(p.Key))
}

func (s *Spec) kubeconfig(path string, c *Credentials, who string) error {
	raw, err := c.Authority.Kubeconfig(c.server, c.issued[who])
	if err != nil {
		return fmt.Errorf("kubeconfig of %s: %w", who, err)
	}
	s.file(path, 0o600, string(raw))
	return nil
}

func (s *Spec) daemon(in Inputs, name string, after []string, args ...string) {
	program := filepath.Join(Programs, in.Program(name))
	s.Daemons = append(s.Daemons, Daemon{Name: name, Args: append([]string{program}, args...), After: after})
}

func hosts(l *plan.Lab) string {
	var b strings.Builder
	b.WriteString("127.0.0.1 localhost\n::1 localhost\n")
	for _, m := range l.Machines {
		for _, a := range m.Addrs() {
			fmt.Fprintf(&b, "%s %s\n", a, m.Name)
		}
	}
	return b.String()
}

// SearchPath is PATH inside a node.
func SearchPath(folders []string) string {
	path := []string{WeirPrograms}
	for _, f := range folders {
		path = append(path, filepath.Join(Programs, f))
	}
	return strings.Join(append(path, "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"), ":")
}
