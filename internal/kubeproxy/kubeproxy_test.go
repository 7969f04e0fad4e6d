// SPDX-License-Identifier: Apache-2.0

package kubeproxy

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/weir-net/weir/internal/hostile"
	"github.com/weir-net/weir/internal/nettest"
)

// inNamespace runs f on a thread of a network namespace of its own, which ends with it.
func inNamespace(t *testing.T, f func()) {
	t.Helper()
	nettest.Run(t, func(string) error {
		f()
		return nil
	})
}

func sh(t *testing.T, stdin, format string, args ...any) string {
	t.Helper()
	line := fmt.Sprintf(format, args...)
	cmd := exec.Command("sh", "-ec", line)
	cmd.Stdin = strings.NewReader(stdin)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Errorf("%s: %v\n%s", line, err, out.String())
	}
	return out.String()
}

// others are rules that are not kube-proxy's: the kubelet's, kube-router's, a user's, some with
// names close to kube-proxy's. KUBEPROXY marks where a table's rules of kube-proxy come.
const others = `*mangle
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
MANGLE
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-ROUTER-INPUT - [0:0]
:KUBE-SVC-short - [0:0]
:MINE - [0:0]
FILTER
-A INPUT -j KUBE-FIREWALL
-A INPUT -j KUBE-ROUTER-INPUT
-A INPUT -p tcp -m tcp --dport 22 -j MINE
-A FORWARD -j KUBE-SVC-short
-A OUTPUT -j KUBE-FIREWALL
-A KUBE-FIREWALL -m comment --comment "block incoming localnet connections" -j DROP
-A KUBE-ROUTER-INPUT -j RETURN
-A KUBE-SVC-short -m mark --mark 0x4000/0x4000 -g MINE
-A MINE -m comment --comment "KUBE-SERVICES is named here only"
-A MINE -j ACCEPT
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:MINE - [0:0]
NAT
-A PREROUTING -j MINE
-A POSTROUTING -s 192.0.2.0/24 -j MASQUERADE
-A MINE -p udp -m udp --dport 53 -j REDIRECT --to-ports 5353
COMMIT
`

// What kube-proxy 1.34 writes in mode iptables for a Service with two endpoints and a node port.
var proxies = strings.NewReplacer(
	"MANGLE\n", ":KUBE-PROXY-CANARY - [0:0]\n",
	"FILTER\n", `:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-PROXY-CANARY - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SERVICES - [0:0]
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A INPUT -m comment --comment "kubernetes health check service ports" -j KUBE-NODEPORTS
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
`,
	"NAT\n", `:KUBE-EXT-TCOU7JCQXEZGVUNU - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-PROXY-CANARY - [0:0]
:KUBE-SEP-IT2ZTR26TO4XFPTO - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-TCOU7JCQXEZGVUNU - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-EXT-TCOU7JCQXEZGVUNU -m comment --comment "masquerade" -j KUBE-MARK-MASQ
-A KUBE-EXT-TCOU7JCQXEZGVUNU -j KUBE-SVC-TCOU7JCQXEZGVUNU
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-NODEPORTS -p tcp -m comment --comment "ns/web" -m tcp --dport 30080 -j KUBE-EXT-TCOU7JCQXEZGVUNU
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
-A KUBE-SEP-IT2ZTR26TO4XFPTO -p tcp -m comment --comment "ns/web" -m tcp -j DNAT --to-destination 10.244.0.2:8080
-A KUBE-SERVICES -d 10.96.0.10/32 -p tcp -m comment --comment "ns/web cluster IP" -m tcp --dport 80 -j KUBE-SVC-TCOU7JCQXEZGVUNU
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-SVC-TCOU7JCQXEZGVUNU -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-IT2ZTR26TO4XFPTO
-A KUBE-SVC-TCOU7JCQXEZGVUNU -j KUBE-SEP-IT2ZTR26TO4XFPTO
`)

var nothing = strings.NewReplacer("MANGLE\n", "", "FILTER\n", "", "NAT\n", "")

func forFamily(text, v string) string {
	if v == "6" {
		text = strings.NewReplacer("10.96.0.10/32", "fd00:96::10/128", "10.244.0.2:8080", "[fd00:244::2]:8080", "192.0.2.0/24", "2001:db8::/64").Replace(text)
	}
	return text
}

var noise = regexp.MustCompile(`(?m)^#.*\n|\[\d+:\d+\]`)

// saved returns the rules as iptables prints them, tables and chains in order, without counters.
func saved(t *testing.T, v, kind string) string {
	var out []string
	for _, table := range []string{"mangle", "filter", "nat"} {
		out = append(out, noise.ReplaceAllString(sh(t, "", "ip%stables-%s-save -t %s", v, kind, table), ""))
	}
	return strings.Join(out, "")
}

func TestIPTables(t *testing.T) {
	for _, kind := range []string{"legacy", "nft"} {
		for _, v := range []string{"", "6"} {
			t.Run(kind+v, func(t *testing.T) {
				inNamespace(t, func() {
					sh(t, forFamily(nothing.Replace(others), v), "ip%stables-%s-restore", v, kind)
					want := saved(t, v, kind)
					sh(t, forFamily(proxies.Replace(others), v), "ip%stables-%s-restore", v, kind)
					if before := saved(t, v, kind); !strings.Contains(before, "-j KUBE-SVC-TCOU7JCQXEZGVUNU") {
						t.Errorf("the rules are not there:\n%s", before)
					}
					removed, err := Clean()
					if err != nil {
						t.Error(err)
					}
					if removed.Chains != 15 || removed.Rules != 10 {
						t.Errorf("removed %+v", removed)
					}
					if got := saved(t, v, kind); got != want {
						t.Errorf("left\n%s\nwant\n%s", got, want)
					}
					if removed, err := Clean(); err != nil || removed.total() != 0 {
						t.Errorf("again: %+v %v", removed, err)
					}
					// What is left is a table that iptables can change.
					sh(t, "", "ip%stables-%s -A MINE -j RETURN; ip%stables-%s -D MINE -j RETURN", v, kind, v, kind)
				})
			})
		}
	}
}

func TestTablesOfModeNFTables(t *testing.T) {
	inNamespace(t, func() {
		const mine = "table ip mine {\n\tchain kube-proxy {\n\t}\n}\n"
		sh(t, mine+`
table ip kube-proxy {
	map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
	set cluster-ips { type ipv4_addr; elements = { 10.96.0.10 }; }
	chain services { ip daddr . meta l4proto . th dport vmap @service-ips; }
	chain nat-output { type nat hook output priority -100; jump services; }
}
table ip6 kube-proxy { chain nat-output { type nat hook output priority -100; }; }
`, "nft -f -")
		removed, err := Clean()
		if err != nil || removed.Tables != 2 {
			t.Errorf("%+v %v", removed, err)
		}
		if got := sh(t, "", "nft list ruleset"); got != mine {
			t.Errorf("left %q", got)
		}
	})
}

func TestWhatModeIPVSLeaves(t *testing.T) {
	inNamespace(t, func() {
		if err := exec.Command("ipset", "list", "-n").Run(); err != nil {
			t.Skip("this kernel has no ipset")
		}
		sh(t, "", "ipset create KUBE-CLUSTER-IP hash:ip,port; ipset create KUBE-6-LOOP-BACK hash:ip,port,ip family inet6; ipset create KUBE-MINE hash:ip; "+
			"iptables-legacy -t nat -N KUBE-SERVICES; iptables-legacy -t nat -A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT")
		removed, err := Clean()
		if err != nil || removed.Sets != 2 {
			t.Errorf("%+v %v", removed, err)
		}
		if got := strings.Fields(sh(t, "", "ipset list -n")); len(got) != 1 || got[0] != "KUBE-MINE" {
			t.Errorf("left %v", got)
		}
	})
	inNamespace(t, func() {
		if exec.Command("ip", "link", "add", "probe0", "type", "dummy").Run() != nil {
			t.Log("this kernel has no dummy devices: no kube-ipvs0 either")
			return
		}
		sh(t, "", "ip link add kube-ipvs0 type dummy; ip addr add 10.96.0.10/32 dev kube-ipvs0")
		if removed, err := Clean(); err != nil || removed.Devices != 1 {
			t.Errorf("%+v %v", removed, err)
		}
		sh(t, "", "! ip link show kube-ipvs0; ip link add kube-ipvs0 type bridge")
		if removed, err := Clean(); err == nil || removed.Devices != 0 {
			t.Errorf("a device of another type: %+v %v", removed, err)
		}
	})
}

func TestNames(t *testing.T) {
	for name, want := range map[string]bool{"KUBE-SERVICES": true, "KUBE-SVC-TCOU7JCQXEZGVUNU": true, "KUBE-SVC-TCOU7JCQXEZGVUN": false, "KUBE-SVC-tcou7jcqxezgvunu": false,
		"KUBE-FIREWALL": false, "KUBE-KUBELET-CANARY": false, "KUBE-MARK-DROP": false, "KUBE-NWPLCY-TCOU7JCQXEZGVUNU": false, "INPUT": false, "": false} {
		if ours(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}

func TestListener(t *testing.T) {
	proc := t.TempDir()
	for _, d := range []string{"self/net", "self/fd", "7"} {
		if err := os.MkdirAll(filepath.Join(proc, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(proc, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	// 10256 is 0x2810; connected, not listening; another port
	write("self/net/tcp6", head+"   0: 00000000000000000000000000000000:2810 0:0 01 0:0 0:0 0 0 0 41\n   1: 0:0016 0:0 0A 0:0 0:0 0 0 0 42\n")
	if who := listener(proc); who != "" {
		t.Error(who)
	}
	write("self/net/tcp6", head+"   0: 00000000000000000000000000000000:2810 0:0 0A 0:0 0:0 0 0 0 43\n")
	if who := listener(proc); !strings.Contains(who, "10256") {
		t.Error(who)
	}
	if err := os.Symlink("socket:[43]", filepath.Join(proc, "self/fd/5")); err != nil {
		t.Fatal(err)
	}
	if who := listener(proc); who != "" {
		t.Errorf("our own: %s", who)
	}
	write("7/comm", "kube-proxy\n")
	if who, known := process(proc), true; who != "process 7" || !known {
		t.Error(who)
	}
}

// The agent opens and closes sockets of its own while it looks for a kube-proxy's. Whatever the
// order, its own are nobody else's, and another's that stays is found.
func TestHostileOwnSocketIsNoKubeProxy(t *testing.T) {
	hostile.Record(t, "an agent takes its own sockets for a kube-proxy and hands Services away", hostile.Operator, hostile.ControlPlane, hostile.Both)
	for _, c := range []struct {
		what    string
		sockets []map[string]uint16 // at each look: what listens, by inode
		own     []map[string]bool   // at each look: the inodes of our descriptors
		want    bool
	}{
		{"opened between two looks", []map[string]uint16{{}, {"43": 10256}}, []map[string]bool{{}, {"43": true}}, false},
		{"opened before, closed before our descriptors were read", []map[string]uint16{{"43": 10256}, {}}, []map[string]bool{{}, {}}, false},
		{"ours all the time", []map[string]uint16{{"43": 10256}, {"43": 10256}}, []map[string]bool{{"43": true}, {"43": true}}, false},
		{"another's all the time", []map[string]uint16{{"44": 10249}, {"44": 10249}}, []map[string]bool{{"43": true}, {"43": true}}, true},
	} {
		// Time goes on with each look at anything: what is found at a look is what there is then.
		for begin := range 2 {
			at := begin
			next := func(n int) int {
				i := min(at, n-1)
				at++
				return i
			}
			port, found := foreign(func() map[string]uint16 { return c.sockets[next(len(c.sockets))] },
				func() map[string]bool { return c.own[next(len(c.own))] })
			if found != c.want || found && port != 10249 {
				t.Errorf("%s (from look %d on): found %v, port %d", c.what, begin, found, port)
			}
		}
	}
}
