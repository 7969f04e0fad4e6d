// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
)

func from[T any](t *testing.T, text string) *T {
	t.Helper()
	var v T
	if err := yaml.UnmarshalStrict([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return &v
}

func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

// fields are the fields that the problems name.
func fields(list []weirv1.Problem) string {
	var out []string
	for _, p := range list {
		out = append(out, p.Field)
	}
	return strings.Join(out, " ")
}

func check(t *testing.T, got, want any, found []weirv1.Problem, wantFields string) {
	t.Helper()
	if d := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" {
		t.Errorf("- want, + got:\n%s", d)
	}
	if f := fields(found); f != wantFields {
		t.Errorf("problems in %q, want in %q: %v", f, wantFields, found)
	}
	for _, p := range found {
		if p.Object == "" || p.Message == "" || p.Action == "" {
			t.Errorf("incomplete problem %+v", p)
		}
	}
}

func TestConvertPod(t *testing.T) {
	got, found := ConvertPod(from[corev1.Pod](t, `
metadata: {name: p, namespace: ns, labels: {a: b}}
spec:
  nodeName: n1
  serviceAccountName: sa
  initContainers:
  - {name: once, ports: [{name: gone, containerPort: 1}]}
  - {name: sidecar, restartPolicy: Always, ports: [{name: side, containerPort: 9, protocol: SCTP}]}
  containers:
  - name: c
    ports:
    - {name: http, containerPort: 80, hostPort: 8080}
    - {name: dns, containerPort: 53, protocol: UDP, hostPort: 53, hostIP: 192.0.2.1}
    - {containerPort: 70000}
    - {containerPort: 81, protocol: ICMP}
    - {containerPort: 82, hostPort: 82, hostIP: nonsense}
    - {containerPort: 83, hostPort: 83, hostIP: 0.0.0.0}
    - {containerPort: 84, hostPort: 84, hostIP: "::"}
status:
  phase: Running
  podIPs: [{ip: 10.244.0.1}, {ip: "fd00::1"}, {ip: 127.0.0.1}, {ip: nonsense}, {ip: "fe80::1%eth0"}]
`))
	want := &model.Pod{Name: model.Name{Namespace: "ns", Name: "p"}, Labels: map[string]string{"a": "b"}, Node: "n1", ServiceAccount: "sa",
		Addrs: addrs("10.244.0.1", "fd00::1"), Ports: []model.PodPort{
			{Name: "http", Protocol: model.ProtocolTCP, Port: 80, HostPort: 8080},
			{Name: "dns", Protocol: model.ProtocolUDP, Port: 53, HostPort: 53, HostIP: netip.MustParseAddr("192.0.2.1")},
			{Protocol: model.ProtocolTCP, Port: 82},
			{Protocol: model.ProtocolTCP, Port: 83, HostPort: 83, HostIP: netip.IPv4Unspecified()},
			{Protocol: model.ProtocolTCP, Port: 84, HostPort: 84},
			{Name: "side", Protocol: model.ProtocolSCTP, Port: 9},
		}}
	check(t, got, want, found, "status.podIPs[2].ip status.podIPs[3].ip status.podIPs[4].ip "+
		"spec.containers[0].ports[2].containerPort spec.containers[0].ports[3].protocol spec.containers[0].ports[4].hostIP")

	got, _ = ConvertPod(from[corev1.Pod](t, `
metadata: {name: p, namespace: ns}
spec: {hostNetwork: true, containers: [{name: c, ports: [{containerPort: 80, hostPort: 80}]}]}
status: {phase: Succeeded, podIP: "::ffff:192.0.2.9"}
`))
	want = &model.Pod{Name: model.Name{Namespace: "ns", Name: "p"}, HostNetwork: true, Finished: true, Addrs: addrs("192.0.2.9"),
		Ports: []model.PodPort{{Protocol: model.ProtocolTCP, Port: 80}}}
	check(t, got, want, nil, "")
}

func TestConvertNode(t *testing.T) {
	got, found := ConvertNode(from[corev1.Node](t, `
metadata: {name: n1, labels: {z: a}, annotations: {projectcalico.org/ASNumber: "64.512", projectcalico.org/RouteReflectorClusterID: x}}
spec: {unschedulable: true}
status:
  addresses:
  - {type: ExternalIP, address: 198.51.100.1}
  - {type: Hostname, address: n1}
  - {type: InternalIP, address: 192.0.2.1}
  - {type: InternalIP, address: "fd00::1"}
  - {type: InternalIP, address: 0.0.0.0}
`))
	want := &model.Node{Name: "n1", Labels: map[string]string{"z": "a"}, Addrs: addrs("192.0.2.1", "fd00::1", "198.51.100.1"), ASN: 64<<16 + 512, Cordoned: true}
	check(t, got, want, found, "status.addresses[4].address metadata.annotations[projectcalico.org/RouteReflectorClusterID]")

	pub, found := ConvertNodeStatus(from[weirv1.NodeStatus](t, `
metadata: {name: n1}
status: {noIPIP: true, egressGateways: {}, linkAddress: "02:00:5e:00:53:01", subnets: [192.0.2.7/24, nonsense, 0.0.0.0/0]}
`))
	check(t, pub, &Published{NoIPIP: true, Gateways: true, LinkAddress: [6]byte{2, 0, 0x5e, 0, 0x53, 1}, Subnets: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}},
		found, "status.subnets[1] status.subnets[2]")
	if n := AddNodeStatus(got, pub); n.LinkAddress[5] != 1 || len(n.Subnets) != 1 || !n.NoIPIP || !n.Gateways || got.LinkAddress[5] != 0 {
		t.Errorf("merged %+v, or changed in place %+v", n, got)
	}
	for _, bad := range []string{"01:00:5e:00:00:01", "ff:ff:ff:ff:ff:ff", "02:00:5e:00:53:01:02:03", "x"} {
		pub, found := ConvertNodeStatus(&weirv1.NodeStatus{Status: weirv1.NodeStatusStatus{LinkAddress: bad}})
		if pub.LinkAddress != [6]byte{} || len(found) != 1 {
			t.Errorf("%s: %+v %v", bad, pub, found)
		}
	}
}

func TestConvertService(t *testing.T) {
	got, found := ConvertService(from[corev1.Service](t, `
metadata: {name: s, namespace: ns}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10, "fd00::10"]
  externalIPs: [198.51.100.7, 127.0.0.1, 224.0.0.1, 169.254.0.1]
  externalTrafficPolicy: Local
  internalTrafficPolicy: Local
  publishNotReadyAddresses: true
  sessionAffinity: ClientIP
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}
  ports:
  - {name: dns, protocol: UDP, port: 53, nodePort: 30053}
  - {port: 80, nodePort: 99999}
  - {name: bad, port: 0}
status:
  loadBalancer:
    ingress: [{ip: 203.0.113.1}, {hostname: lb.example}, {ip: 203.0.113.2, ipMode: Proxy}, {ip: 203.0.113.3, ipMode: VIP}]
`))
	want := &model.Service{Name: model.Name{Namespace: "ns", Name: "s"}, ClusterIPs: addrs("10.96.0.10", "fd00::10"),
		ExternalIPs: addrs("198.51.100.7"), LBIPs: addrs("203.0.113.1", "203.0.113.3"), Affinity: 60,
		PublishNotReady: true, ExternalLocal: true, InternalLocal: true,
		Ports: []model.ServicePort{{Name: "dns", Protocol: model.ProtocolUDP, Port: 53, NodePort: 30053}, {Protocol: model.ProtocolTCP, Port: 80}}}
	check(t, got, want, found, "spec.externalIPs[1] spec.externalIPs[2] spec.externalIPs[3] spec.ports[1].nodePort spec.ports[2].port")

	for what, text := range map[string]string{
		"headless":      `{metadata: {name: s}, spec: {clusterIP: None}}`,
		"external name": `{metadata: {name: s}, spec: {type: ExternalName, externalName: example.com}}`,
		"other proxy":   `{metadata: {name: s, labels: {service.kubernetes.io/service-proxy-name: x}}, spec: {clusterIP: 10.96.0.1}}`,
		"some proxy":    `{metadata: {name: s, labels: {service.kubernetes.io/service-proxy-name: ""}}, spec: {clusterIP: 10.96.0.1}}`,
		"by label":      `{metadata: {name: s, labels: {service.kubernetes.io/headless: ""}}, spec: {clusterIP: 10.96.0.1}}`,
		"not yet given": `{metadata: {name: s}, spec: {type: ClusterIP}}`,
	} {
		if got, found := ConvertService(from[corev1.Service](t, text)); got != nil || len(found) > 0 {
			t.Errorf("%s: %+v %v", what, got, found)
		}
	}
	got, found = ConvertService(from[corev1.Service](t, `
metadata: {name: s, namespace: ns}
spec: {type: LoadBalancer, clusterIP: 10.96.0.1, loadBalancerSourceRanges: [" 192.0.2.7/24", 10.0.0.0/40, "2001:db8::/32"], sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 90000}}}
status: {loadBalancer: {ingress: [{ip: 203.0.113.1}]}}
`))
	ranges := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/32")}
	if len(got.LBIPs) != 1 || !got.Restricted || !slices.Equal(got.SourceRanges, ranges) || got.Affinity != 10800 ||
		fields(found) != "spec.loadBalancerSourceRanges[1] spec.sessionAffinityConfig.clientIP.timeoutSeconds" {
		t.Errorf("%+v %v", got, found)
	}
}

func TestExternalModeOfAService(t *testing.T) {
	for text, want := range map[string]struct {
		mode  model.ExternalMode
		found string
	}{
		"tunnel": {mode: model.ExternalModeTunnel}, "DSR": {mode: model.ExternalModeDSR},
		"direct": {found: "metadata.annotations[weir.dev/external-service-mode]"},
	} {
		got, found := ConvertService(from[corev1.Service](t, `
metadata: {name: s, annotations: {weir.dev/external-service-mode: "`+text+`"}}
spec: {clusterIP: 10.96.0.1}
`))
		if got.ExternalMode != want.mode || fields(found) != want.found {
			t.Errorf("%s: mode %q, %v", text, got.ExternalMode, found)
		}
	}
}

func TestStrategyOfAService(t *testing.T) {
	for text, want := range map[string]struct {
		maglev bool
		found  string
	}{
		"maglev": {maglev: true}, "Maglev": {maglev: true},
		"ring": {found: "metadata.annotations[lb.projectcalico.org/external-traffic-strategy]"},
	} {
		got, found := ConvertService(from[corev1.Service](t, `
metadata: {name: s, annotations: {lb.projectcalico.org/external-traffic-strategy: "`+text+`"}}
spec: {clusterIP: 10.96.0.1}
`))
		if got.Maglev != want.maglev || fields(found) != want.found {
			t.Errorf("%s: maglev %t, %v", text, got.Maglev, found)
		}
	}
}

func TestConvertEndpointSlice(t *testing.T) {
	got, found := ConvertEndpointSlice(from[discoveryv1.EndpointSlice](t, `
metadata: {name: s-1, namespace: ns, labels: {kubernetes.io/service-name: s}, annotations: {endpoints.kubernetes.io/last-change-trigger-time: "2026-11-26T20:50:03.25+01:00"}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}, {name: all}, {port: 53, protocol: UDP}, {name: bad, port: -1}]
endpoints:
- {addresses: [10.244.0.1, 10.244.0.99], nodeName: n1}
- {addresses: [10.244.0.2], conditions: {ready: false}, hints: {forZones: [{name: z1}, {name: z2}], forNodes: [{name: n7}]}}
- {addresses: [10.244.0.3], conditions: {ready: false, serving: true, terminating: true}}
- {addresses: [127.0.0.1]}
- {addresses: []}
`))
	want := &model.EndpointSlice{Name: model.Name{Namespace: "ns", Name: "s-1"}, Service: model.Name{Namespace: "ns", Name: "s"},
		ChangedAt: time.Date(2026, 11, 26, 19, 50, 3, 250e6, time.UTC).UnixNano(),
		Ports:     []model.EndpointPort{{Name: "http", Protocol: model.ProtocolTCP, Port: 8080}, {Protocol: model.ProtocolUDP, Port: 53}},
		Endpoints: []model.ServiceEndpoint{
			{Addrs: addrs("10.244.0.1"), Node: "n1", Ready: true, Serving: true},
			{Addrs: addrs("10.244.0.2"), Hints: model.HintsFor([]string{"z1", "z2"}, []string{"n7"})},
			{Addrs: addrs("10.244.0.3"), Serving: true, Terminating: true},
		}}
	check(t, got, want, found, "ports[3].port endpoints[3].addresses[0]")
	for what, text := range map[string]string{
		"no service": `{metadata: {name: s}, addressType: IPv4}`,
		"names":      `{metadata: {name: s, labels: {kubernetes.io/service-name: s}}, addressType: FQDN}`,
	} {
		if got, found := ConvertEndpointSlice(from[discoveryv1.EndpointSlice](t, text)); got != nil || len(found) > 0 {
			t.Errorf("%s: %+v %v", what, got, found)
		}
	}
	for _, label := range []string{"service.kubernetes.io/headless", "service.kubernetes.io/service-proxy-name"} {
		text := `{metadata: {name: s, labels: {kubernetes.io/service-name: s, ` + label + `: ""}}, addressType: IPv4, endpoints: [{addresses: [10.244.0.1]}]}`
		if got, found := ConvertEndpointSlice(from[discoveryv1.EndpointSlice](t, text)); got == nil || !got.NotCarried || len(got.Endpoints) != 1 || len(found) > 0 {
			t.Errorf("%s: %+v %v", label, got, found)
		}
	}
}

func TestConvertPool(t *testing.T) {
	pool := func(text string) (*model.Pool, []weirv1.Problem) {
		return ConvertPool(from[v3.IPPool](t, "{metadata: {name: p}, spec: "+text+"}"))
	}
	got, found := pool(`{cidr: 10.244.0.0/16, natOutgoing: true, vxlanMode: CrossSubnet, nodeSelector: "all()", allowedUses: [Workload]}`)
	check(t, got, &model.Pool{Name: "p", CIDR: netip.MustParsePrefix("10.244.0.0/16"), VXLAN: model.EncapCrossSubnet, IPIP: model.EncapNever, NATOutgoing: true,
		BlockBits: 26, NodeSelector: "all()", Workload: true}, found, "")
	got, found = pool(`{cidr: "fd00::/64", disabled: true, allowedUses: [LoadBalancer]}`)
	check(t, got, &model.Pool{Name: "p", CIDR: netip.MustParsePrefix("fd00::/64"), VXLAN: model.EncapNever, IPIP: model.EncapNever, Disabled: true, BlockBits: 122, LoadBalancer: true}, found, "")
	got, found = pool(`{cidr: 192.0.2.0/28, namespaceSelector: 'a == "b"', allowedUses: [LoadBalancer]}`)
	check(t, got, &model.Pool{Name: "p", CIDR: netip.MustParsePrefix("192.0.2.0/28"), VXLAN: model.EncapNever, IPIP: model.EncapNever, BlockBits: 28, LoadBalancer: true,
		NamespaceSelector: `a == "b"`}, found, "")
	got, found = pool(`{cidr: 10.0.0.0/28, assignmentMode: Manual}`)
	check(t, got, &model.Pool{Name: "p", CIDR: netip.MustParsePrefix("10.0.0.0/28"), VXLAN: model.EncapNever, IPIP: model.EncapNever, BlockBits: 28, Manual: true, Workload: true}, found, "")
	for text, want := range map[string]string{
		`{cidr: 10.244.0.1/16}`:                                                     "spec.cidr",
		`{cidr: 10.244.0.1}`:                                                        "spec.cidr",
		`{cidr: ""}`:                                                                "spec.cidr",
		`{cidr: "::ffff:10.0.0.0/104"}`:                                             "spec.cidr",
		`{cidr: 10.0.0.0/8, vxlanMode: sometimes}`:                                  "spec.vxlanMode",
		`{cidr: 10.0.0.0/8, ipipMode: Always}`:                                      "",
		`{cidr: "fd00::/64", ipipMode: Always}`:                                     "spec.ipipMode",
		`{cidr: 10.0.0.0/8, ipipMode: sometimes}`:                                   "spec.ipipMode",
		`{cidr: 10.0.0.0/8, ipipMode: Always, vxlanMode: CrossSubnet}`:              "spec.ipipMode",
		`{cidr: 10.0.0.0/8, nodeSelector: 'a == "b"', allowedUses: [LoadBalancer]}`: "spec.nodeSelector",
		`{cidr: 10.0.0.0/8, assignmentMode: x, allowedUses: [Job]}`:                 "spec.assignmentMode spec.allowedUses[0]",
	} {
		if _, found := pool(text); fields(found) != want {
			t.Errorf("%s: problems in %q, want in %q", text, fields(found), want)
		}
	}
}

func TestConvertBlock(t *testing.T) {
	block := func(name, cidr, node string) (*model.Block, []weirv1.Problem) {
		b := &weirv1.IPAMBlock{Spec: weirv1.IPAMBlockSpec{CIDR: cidr, Node: node}}
		b.Name = name
		return ConvertBlock(b)
	}
	got, found := block("10-244-0-0-26", "10.244.0.0/26", "n1")
	check(t, got, &model.Block{CIDR: netip.MustParsePrefix("10.244.0.0/26"), Node: "n1"}, found, "")
	got, found = block("fd00-0000-0000-0000-0000-0000-0000-0000-122", "fd00::/122", "n1")
	check(t, got, &model.Block{CIDR: netip.MustParsePrefix("fd00::/122"), Node: "n1"}, found, "")
	for _, c := range [][4]string{
		{"x", "10.244.0.0/26", "n1", "metadata.name"},
		{"10-244-0-1-26", "10.244.0.1/26", "n1", "spec.cidr"},
		{"10-244-0-0-26", "10.244.0.0/26", "", "spec.node"},
	} {
		if got, found := block(c[0], c[1], c[2]); got != nil || fields(found) != c[3] {
			t.Errorf("%v: %+v %v", c, got, found)
		}
	}
}

func TestConvertReservation(t *testing.T) {
	got, found := ConvertReservation(from[v3.IPReservation](t, `{metadata: {name: r}, spec: {reservedCIDRs: [10.0.0.9/30, 10.0.1.1, x]}}`))
	check(t, got, &Reservation{Name: "r", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.8/30"), netip.MustParsePrefix("10.0.1.1/32")}},
		found, "spec.reservedCIDRs[2]")
}

func TestNodeThatIsToGo(t *testing.T) {
	for spec, want := range map[string]bool{
		`{taints: [{key: node.kubernetes.io/unreachable, effect: NoExecute}]}`:                                                     false,
		`{taints: [{key: a, effect: NoSchedule}, {key: ToBeDeletedByClusterAutoscaler, value: "1763700000", effect: NoSchedule}]}`: true,
	} {
		obj, err := strip(from[corev1.Node](t, "metadata: {name: n}\nspec: "+spec))
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := ConvertNode(obj.(*corev1.Node)); got.Leaving != want {
			t.Errorf("%s: leaving %t", spec, got.Leaving)
		}
	}
}

func TestHealthCheckNodePort(t *testing.T) {
	for spec, want := range map[string]uint16{
		`{type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 31000, clusterIP: 10.96.0.1}`:   31000,
		`{type: LoadBalancer, externalTrafficPolicy: Cluster, healthCheckNodePort: 31000, clusterIP: 10.96.0.1}`: 0,
		`{type: NodePort, externalTrafficPolicy: Local, healthCheckNodePort: 31000, clusterIP: 10.96.0.1}`:       0,
	} {
		got, _ := ConvertService(from[corev1.Service](t, "metadata: {name: s, namespace: ns}\nspec: "+spec))
		if got.HealthPort != want {
			t.Errorf("%s: %d", spec, got.HealthPort)
		}
	}
}
