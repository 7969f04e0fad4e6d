// SPDX-License-Identifier: Apache-2.0

// Package policytest makes small random clusters with policies for tests, has the oracle of the
// data plane carry flows through them with whatever policies are in force, and makes the records
// that nodes would keep of these.
package policytest

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/weir-net/weir/internal/model"
)

// World is a cluster of two nodes.
type World struct {
	*rand.Rand
	Objects []*unstructured.Unstructured // all but policies
	Pods    []Pod
	serial  int
}

// Pod is a pod of a world.
type Pod struct {
	Name   model.Name
	Addr   netip.Addr
	Node   string
	Labels map[string]string
	// Kind is the number of its workload: pods of one differ in generated labels alone.
	Kind int
}

// Object is a part of an object.
type Object = map[string]any

// The nodes, by name.
var (
	Nodes   = map[string]netip.Addr{"n1": netip.MustParseAddr("10.0.0.1"), "n2": netip.MustParseAddr("10.0.0.2")}
	blocks  = map[string]netip.Prefix{"n1": netip.MustParsePrefix("10.244.1.0/26"), "n2": netip.MustParsePrefix("10.244.2.0/26")}
	Outside = []netip.Addr{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("198.51.100.9")}
	// Namespaces of worlds.
	Namespaces = []string{"a", "b", "c"}
)

// ServiceAddr is the address of the Service a/web, whose port is 80.
var ServiceAddr = netip.MustParseAddr("10.96.0.10")

// New makes a world.
func New(seed uint64) *World {
	w := &World{Rand: rand.New(rand.NewPCG(seed, 21))}
	for i, ns := range Namespaces {
		w.Add("v1", "Namespace", "", ns, Object{"metadata": Object{"labels": Object{"kubernetes.io/metadata.name": ns, "team": []string{"x", "y"}[i%2]}}})
		w.Add("v1", "ServiceAccount", ns, "default", nil)
		w.Add("v1", "ServiceAccount", ns, "robot", Object{"metadata": Object{"labels": Object{"role": "robot"}}})
	}
	for name, a := range Nodes {
		w.Add("v1", "Node", "", name, Object{"metadata": Object{"labels": Object{"node": name}}, "status": Object{"addresses": []any{Object{"type": "InternalIP", "address": a.String()}}}})
	}
	w.Add("projectcalico.org/v3", "IPPool", "", "default", Object{"spec": Object{"cidr": "10.244.0.0/16", "vxlanMode": "Always", "natOutgoing": true, "blockSize": int64(26)}})
	kinds := []map[string]string{{"app": "web"}, {"app": "web", "tier": "back"}, {"app": "db"}, {"tier": "back"}, {}}
	for _, ns := range Namespaces {
		for kind, labels := range kinds {
			for range 1 + w.IntN(2) {
				w.addPod(ns, kind, labels)
			}
		}
	}
	return w
}

func (w *World) addPod(ns string, kind int, labels map[string]string) {
	w.serial++
	p := Pod{Name: model.Name{Namespace: ns, Name: fmt.Sprintf("w%d-h-p%d", kind, w.serial)}, Node: Pick(w, "n1", "n2"), Labels: map[string]string{}, Kind: kind}
	b := blocks[p.Node].Addr().As4()
	b[3] = byte(w.serial)
	p.Addr = netip.AddrFrom4(b)
	for k, v := range labels {
		p.Labels[k] = v
	}
	if len(labels) > 0 {
		p.Labels["pod-template-hash"] = "h"
	}
	meta := Object{}
	for k, v := range p.Labels {
		meta[k] = v
	}
	port := int64(Pick(w, 80, 8080))
	w.Add("v1", "Pod", ns, p.Name.Name, Object{
		"metadata": Object{"labels": meta, "creationTimestamp": "2020-01-01T00:00:00Z"},
		"spec": Object{"nodeName": p.Node, "serviceAccountName": Pick(w, "default", "robot"), "containers": []any{
			Object{"name": "c", "ports": []any{Object{"name": "http", "containerPort": port, "protocol": "TCP"}}}}},
		"status": Object{"podIPs": []any{Object{"ip": p.Addr.String()}}},
	})
	w.Pods = append(w.Pods, p)
}

// Pick returns one of several.
func Pick[T any](w *World, of ...T) T { return of[w.IntN(len(of))] }

// NewObject makes an object.
func NewObject(apiVersion, kind, ns, name string, rest Object) *unstructured.Unstructured {
	if rest == nil {
		rest = Object{}
	}
	u := &unstructured.Unstructured{Object: rest}
	u.SetAPIVersion(apiVersion)
	u.SetKind(kind)
	u.SetName(name)
	u.SetNamespace(ns)
	return u
}

// Add adds an object to the world.
func (w *World) Add(apiVersion, kind, ns, name string, rest Object) {
	w.Objects = append(w.Objects, NewObject(apiVersion, kind, ns, name, rest))
}

// Policies makes random policies, and what they refer to.
func (w *World) Policies(most int) (out []*unstructured.Unstructured) {
	for range w.IntN(most + 1) {
		out = append(out, w.policy())
	}
	if w.IntN(3) == 0 {
		out = append(out, NewObject("projectcalico.org/v3", "GlobalNetworkSet", "", "set", Object{"metadata": Object{"labels": Object{"set": "s"}}, "spec": Object{"nets": []any{Pick(w, "192.0.2.0/24", "198.51.100.0/24")}}}))
	}
	if w.IntN(3) == 0 {
		out = append(out, NewObject("projectcalico.org/v3", "Tier", "", "sec", Object{"spec": Object{"order": int64(Pick(w, 10, 2000000)), "defaultAction": Pick(w, "Deny", "Pass")}}))
	}
	return out
}

func (w *World) policy() *unstructured.Unstructured {
	ns, name := Pick(w, Namespaces...), fmt.Sprint("p", w.IntN(3))
	switch w.IntN(4) {
	case 0:
		return NewObject("projectcalico.org/v3", "NetworkPolicy", ns, name, Object{"spec": w.calicoSpec(false)})
	case 1:
		return NewObject("projectcalico.org/v3", "GlobalNetworkPolicy", "", name, Object{"spec": w.calicoSpec(true)})
	case 2:
		return NewObject("policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy", "", name, Object{"spec": Object{
			"tier": Pick(w, "Admin", "Baseline"), "priority": int64(w.IntN(100)), "subject": w.subject(),
			"ingress": []any{w.clusterRule("from"), w.clusterRule("from")}, "egress": []any{w.clusterRule("to")}}})
	}
	return NewObject("networking.k8s.io/v1", "NetworkPolicy", ns, name, Object{"spec": w.spec()})
}

func (w *World) labels() Object {
	switch w.IntN(4) {
	case 0:
		return Object{}
	case 1:
		return Object{"matchExpressions": []any{Object{"key": Pick(w, "app", "tier"), "operator": Pick(w, "Exists", "DoesNotExist")}}}
	}
	return Object{"matchLabels": Pick(w, Object{"app": "web"}, Object{"app": "db"}, Object{"tier": "back"})}
}

func (w *World) spec() Object {
	types := Pick(w, []any{"Ingress"}, []any{"Egress"}, []any{"Ingress", "Egress"})
	out := Object{"podSelector": w.labels(), "policyTypes": types}
	for _, dir := range types {
		field, peers := "ingress", "from"
		if dir == "Egress" {
			field, peers = "egress", "to"
		}
		var rules []any
		for range w.IntN(3) {
			r := Object{}
			if w.IntN(4) > 0 {
				r[peers] = []any{w.peer()}
			}
			if w.IntN(3) > 0 {
				r["ports"] = []any{Pick(w, Object{"protocol": "TCP", "port": int64(80)}, Object{"protocol": "TCP", "port": "http"}, Object{"protocol": "UDP", "port": int64(53)}, Object{"protocol": "TCP", "port": int64(80), "endPort": int64(9000)})}
			}
			rules = append(rules, r)
		}
		if rules != nil {
			out[field] = rules
		}
	}
	return out
}

func (w *World) peer() Object {
	switch w.IntN(4) {
	case 0:
		return Object{"podSelector": w.labels()}
	case 1:
		return Object{"namespaceSelector": Object{"matchLabels": Object{"team": Pick(w, "x", "y")}}}
	case 2:
		return Object{"namespaceSelector": Object{}, "podSelector": w.labels()}
	}
	return Object{"ipBlock": Pick(w, Object{"cidr": "192.0.2.0/24"}, Object{"cidr": "0.0.0.0/0", "except": []any{"10.244.1.0/24"}}, Object{"cidr": "10.0.0.2/32"}, Object{"cidr": "10.244.2.0/24"})}
}

func (w *World) expression() string {
	return Pick(w, "all()", "app == 'web'", "has(tier)", "!has(app)", "app in {'web','db'} && tier != 'back'", "set == 's'", "projectcalico.org/serviceaccount == 'robot'", "pcns.team == 'x'", "pcsa.role == 'robot'")
}

func (w *World) calicoSpec(global bool) Object {
	out := Object{"order": int64(w.IntN(3)), "selector": w.expression(), "types": Pick(w, []any{"Ingress"}, []any{"Egress"}, []any{"Ingress", "Egress"})}
	out["tier"] = Pick(w, "default", "default", "sec")
	if global && w.IntN(3) == 0 {
		out["namespaceSelector"] = "team == '" + Pick(w, "x", "y") + "'"
	}
	for _, dir := range out["types"].([]any) {
		field := map[any]string{"Ingress": "ingress", "Egress": "egress"}[dir]
		var rules []any
		for range 1 + w.IntN(3) {
			rules = append(rules, w.calicoRule())
		}
		out[field] = rules
	}
	return out
}

func (w *World) calicoRule() Object {
	r := Object{"action": Pick(w, "Allow", "Allow", "Deny", "Pass", "Log")}
	source, destination := Object{}, Object{}
	switch w.IntN(4) {
	case 0:
		r["protocol"] = "ICMP"
		if w.IntN(2) == 0 {
			r["icmp"] = Object{"type": int64(Pick(w, 8, 3))}
		}
	case 1:
		r["protocol"] = "TCP"
		destination["ports"] = []any{Pick[any](w, int64(80), "http", "8000:9000")}
	case 2:
		r["protocol"] = "UDP"
		source["ports"] = []any{"1024:33000"}
	}
	for _, e := range []Object{source, destination} {
		switch w.IntN(5) {
		case 0:
			e["selector"] = w.expression()
		case 1:
			e["nets"] = []any{Pick(w, "192.0.2.0/24", "10.244.1.0/24", "10.0.0.0/24")}
		case 2:
			e["notSelector"] = w.expression()
		}
	}
	if len(source) > 0 {
		r["source"] = source
	}
	if len(destination) > 0 {
		r["destination"] = destination
	}
	return r
}

func (w *World) subject() Object {
	if w.IntN(2) == 0 {
		return Object{"namespaces": Object{"matchLabels": Object{"team": Pick(w, "x", "y")}}}
	}
	return Object{"pods": Object{"namespaceSelector": Object{}, "podSelector": w.labels()}}
}

func (w *World) clusterRule(peers string) Object {
	r := Object{"action": Pick(w, "Accept", "Deny", "Pass"), peers: []any{w.subject()}}
	if peers == "to" && w.IntN(2) == 0 {
		r[peers] = []any{Pick(w, Object{"networks": []any{"192.0.2.0/24"}}, Object{"nodes": Object{"matchLabels": Object{"node": "n1"}}})}
	}
	return r
}
