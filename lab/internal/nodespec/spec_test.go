// SPDX-License-Identifier: Apache-2.0

package nodespec

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/weir-net/weir/lab/internal/plan"
	"sigs.k8s.io/yaml"
)

func render(t *testing.T, proxy plan.Proxy) map[string]*Spec {
	return renderFamily(t, proxy, plan.IPv4)
}

func renderFamily(t *testing.T, proxy plan.Proxy, family plan.Family) map[string]*Spec {
	t.Helper()
	l, err := plan.New("t", 2, family, false)
	if proxy.VPC() {
		l, err = plan.NewVPC("t", 2, plan.IPv4)
	}
	if proxy.VNet() {
		l, err = plan.NewVNet("t", 2, proxy == plan.ProxyWeirOnAzureOverlay)
	}
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewCredentials(l)
	if err != nil {
		t.Fatal(err)
	}
	in := Inputs{
		Lab: l, Proxy: proxy, Data: "/data", Programs: "/cache/bin", MaxFiles: 20000,
		Program: func(name string) string { return "group/" + name }, Folders: []string{"group"},
	}
	if proxy == plan.ProxyWeir {
		in.Weir = "/weir/bin"
	}
	out := map[string]*Spec{}
	for _, m := range l.Nodes() {
		if out[m.Name], err = Render(in, c, m); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func (s *Spec) find(path string) (File, bool) {
	for _, f := range s.Files {
		if f.Path == path {
			return f, true
		}
	}
	return File{}, false
}

func daemons(s *Spec) string {
	var out []string
	for _, d := range s.Daemons {
		out = append(out, d.Name)
	}
	return strings.Join(out, " ")
}

func TestDaemons(t *testing.T) {
	const cp = "etcd kube-apiserver kube-controller-manager kube-scheduler containerd kubelet"
	for proxy, want := range map[plan.Proxy][2]string{
		plan.ProxyWeir:     {cp, "containerd kubelet"},
		plan.ProxyNone:     {cp, "containerd kubelet"},
		plan.ProxyNFTables: {cp, "containerd kubelet"}, // kube-proxy is a pod
	} {
		specs := render(t, proxy)
		for i, node := range []string{"cp", "worker1"} {
			if got := daemons(specs[node]); got != want[i] {
				t.Errorf("%s, %s: %s; want %s", proxy, node, got, want[i])
			}
		}
	}
}

func TestNetworkingIsLeftToWeir(t *testing.T) {
	for proxy, routed := range map[plan.Proxy]bool{plan.ProxyWeir: false, plan.ProxyAlongsideIPTables: false, plan.ProxyNone: true, plan.ProxyNFTables: true} {
		for node, s := range render(t, proxy) {
			_, conf := s.find(cniConf + "/10-lab.conflist")
			_, ptp := s.find(cniBin + "/ptp")
			if conf != routed || ptp != routed {
				t.Errorf("%s, %s: configuration %v, plugin %v; want %v", proxy, node, conf, ptp, routed)
			}
			if lo, ok := s.find(cniBin + "/loopback"); !ok || lo.Mode != ModeLink {
				t.Errorf("%s, %s: no loopback plugin", proxy, node)
			}
		}
	}
}

func TestKubeletConfig(t *testing.T) {
	for node, s := range render(t, plan.ProxyNFTables) {
		f, ok := s.find(kubeletYAML)
		if !ok {
			t.Fatalf("%s: no kubelet configuration", node)
		}
		var c struct {
			CgroupRoot         string
			FailCgroupV1       *bool
			MaxOpenFiles       int
			OOMScoreAdj        *int
			ClusterDNS         []string
			RegisterWithTaints []struct{ Key, Effect string }
		}
		if err := yaml.Unmarshal([]byte(f.Content), &c); err != nil {
			t.Fatal(err)
		}
		if c.CgroupRoot != "/" || c.FailCgroupV1 == nil || *c.FailCgroupV1 || c.MaxOpenFiles != 20000 || c.OOMScoreAdj == nil || *c.OOMScoreAdj != 0 {
			t.Errorf("%s: %+v", node, c)
		}
		if len(c.ClusterDNS) != 1 || c.ClusterDNS[0] != "10.96.0.10" {
			t.Errorf("%s: cluster DNS %v", node, c.ClusterDNS)
		}
		tainted := len(c.RegisterWithTaints) == 1 && c.RegisterWithTaints[0].Key == ControlPlaneTaint && c.RegisterWithTaints[0].Effect == "NoSchedule"
		if tainted != (node == "cp") {
			t.Errorf("%s: taints %v", node, c.RegisterWithTaints)
		}
	}
}

func TestCNIConfig(t *testing.T) {
	subnets := map[string]bool{}
	for node, s := range render(t, plan.ProxyNone) {
		f, _ := s.find(cniConf + "/10-lab.conflist")
		var c struct {
			CNIVersion string
			Plugins    []struct {
				Type string
				MTU  int
				IPAM struct{ Ranges [][]struct{ Subnet string } }
			}
		}
		if err := json.Unmarshal([]byte(f.Content), &c); err != nil {
			t.Fatal(err)
		}
		if len(c.Plugins) != 2 || c.Plugins[0].Type != "ptp" || c.Plugins[0].MTU != plan.MTU || c.Plugins[1].Type != "portmap" {
			t.Fatalf("%s: %+v", node, c)
		}
		subnet := c.Plugins[0].IPAM.Ranges[0][0].Subnet
		if subnets[subnet] {
			t.Errorf("%s: subnet %s is used twice", node, subnet)
		}
		subnets[subnet] = true
	}
}

// flag returns the value of a daemon's flag.
func (s *Spec) flag(daemon, name string) string {
	for _, d := range s.Daemons {
		for _, arg := range d.Args {
			if v, ok := strings.CutPrefix(arg, "--"+name+"="); ok && d.Name == daemon {
				return v
			}
		}
	}
	return ""
}

func TestFamilies(t *testing.T) {
	for family, want := range map[plan.Family]map[string]string{
		plan.IPv4: {"node-ip": "172.31.1.207", "service-cluster-ip-range": "10.96.0.0/16", "cluster-cidr": "10.244.0.0/16", "bind-address": "0.0.0.0"},
		plan.IPv6: {"node-ip": "fd00:172:31:1::207", "service-cluster-ip-range": "fd00:10:96::/112", "cluster-cidr": "fd00:10:244::/56", "bind-address": "::"},
		plan.Dual: {"node-ip": "172.31.1.207,fd00:172:31:1::207", "service-cluster-ip-range": "10.96.0.0/16,fd00:10:96::/112",
			"cluster-cidr": "10.244.0.0/16,fd00:10:244::/56", "bind-address": "::"},
	} {
		specs := renderFamily(t, plan.ProxyNFTables, family)
		cp, worker := specs["cp"], specs["worker1"]
		for what, got := range map[string]string{
			"node-ip": worker.flag("kubelet", "node-ip"), "service-cluster-ip-range": cp.flag("kube-apiserver", "service-cluster-ip-range"),
			"cluster-cidr": cp.flag("kube-controller-manager", "cluster-cidr"), "bind-address": cp.flag("kube-apiserver", "bind-address"),
		} {
			if got != want[what] {
				t.Errorf("%s: %s is %q, want %q", family, what, got, want[what])
			}
		}
		if got := cp.flag("kube-controller-manager", "service-cluster-ip-range"); got != want["service-cluster-ip-range"] {
			t.Errorf("%s: the controllers' Service addresses are %q", family, got)
		}
		cni, _ := worker.find(cniConf + "/10-lab.conflist")
		hosts, _ := worker.find("/etc/hosts")
		for _, six := range []struct{ in, text string }{{cni.Content, `"subnet": "fd00:10:244:1::/64"`}, {cni.Content, `"dst": "::/0"`}, {hosts.Content, "fd00:172:31:1::8 cp\n"}} {
			if strings.Contains(six.in, six.text) != family.Has6() {
				t.Errorf("%s: %q in %s", family, six.text, six.in)
			}
		}
	}
}

func TestSecretsStayPrivate(t *testing.T) {
	for node, s := range render(t, plan.ProxyNFTables) {
		for _, f := range s.Files {
			if strings.Contains(f.Content, "PRIVATE KEY") && f.Mode != 0o600 {
				t.Errorf("%s: %s holds a key and has mode %o", node, f.Path, f.Mode)
			}
			if strings.Contains(f.Path, "ca.key") && node != "cp" {
				t.Errorf("%s has the authority's key", node)
			}
		}
	}
}

func TestEachNodeHasItsOwnPlaces(t *testing.T) {
	seen := map[string]string{}
	for node, s := range render(t, plan.ProxyWeir) {
		for _, place := range []string{"var " + s.Var, "cgroup " + s.Cgroup} {
			if other, ok := seen[place]; ok {
				t.Errorf("%s and %s share %s", node, other, place)
			}
			seen[place] = node
		}
	}
}

// TestAWS: a node in a VPC has what the DaemonSet aws-node puts there, and no more pods than
// addresses.
func TestAWS(t *testing.T) {
	for node, s := range render(t, plan.ProxyWeirOnAWS) {
		for path, want := range map[string]bool{
			cniConf + "/10-aws.conflist": true, cniBin + "/aws-cni": true, cniBin + "/egress-cni": true, cniBin + "/portmap": true, awsConf: true,
			cniConf + "/10-lab.conflist": false, cniBin + "/ptp": false,
		} {
			if _, is := s.find(path); is != want {
				t.Errorf("%s: %s is there: %v", node, path, is)
			}
		}
		last := s.Daemons[len(s.Daemons)-1]
		if !strings.Contains(daemons(s), "aws-node") || last.Name != "kubelet" || last.After[len(last.After)-1] != "unix://"+awsSocket {
			t.Errorf("%s: daemons %s; the kubelet waits for %v", node, daemons(s), last.After)
		}
		conf, _ := s.find(awsConf)
		var c struct {
			Interfaces []struct {
				MAC, Address string
				Pods         []string
			}
		}
		if err := json.Unmarshal([]byte(conf.Content), &c); err != nil || len(c.Interfaces) != 2 || len(c.Interfaces[1].Pods) != 42 || c.Interfaces[1].MAC == "" {
			t.Errorf("%s: %v, %s", node, err, conf.Content)
		}
		kubelet, _ := s.find(kubeletYAML)
		if !strings.Contains(kubelet.Content, "maxPods: 86\n") {
			t.Errorf("%s: another number of pods than 86:\n%s", node, kubelet.Content)
		}
	}
}

// Where SELinux is in force, containerd gives containers their labels.
func TestSELinux(t *testing.T) {
	l, err := plan.New("t", 0, plan.IPv4, false)
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewCredentials(l)
	if err != nil {
		t.Fatal(err)
	}
	for _, on := range []bool{false, true} {
		s, err := Render(Inputs{Lab: l, Proxy: plan.ProxyWeir, SELinux: on, Program: func(name string) string { return name }}, c, l.Nodes()[0])
		if err != nil {
			t.Fatal(err)
		}
		if f, _ := s.find(containerdTOML); strings.Contains(f.Content, "\n"+criSettings+"  enable_selinux = true\n") != on {
			t.Errorf("SELinux %t: %s", on, f.Content)
		}
	}
}
