// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// base is what most tests begin with: a server and a client on each worker, and a Service for each
// server whose node ports begin at 30710 and 30720.
type base struct {
	*space
	srv1, srv2, cli1, cli2 *place
	svc1, svc2             string // cluster IPs
}

const (
	nodePort1 = 30710
	nodePort2 = 30720
)

// shared is the base of sharedBase, once a test has asked for it.
var shared *base

// sharedBase is one base for all tests that neither end nor change its pods and Services. What a
// test makes in its namespace besides goes when the test ends. After a test that failed the next
// one gets a new base.
func sharedBase(t *testing.T) *base {
	t.Helper()
	figures.begin(t)
	if shared != nil {
		if err := shared.intact(); err != nil {
			t.Logf("the base is made anew: %v", err)
			shared.dropped()
		}
	}
	if shared == nil {
		b := &base{space: all.makeSpace(t, "base")}
		shared = b // what is made of it goes with the lab, or with the next base
		b.fill(t)
	}
	b := shared
	t.Cleanup(func() {
		err := b.restore()
		switch {
		case t.Failed():
			b.dropped()
		case err != nil:
			b.dropped()
			t.Errorf("restore the base: %v", err)
		}
	})
	b.works(t)
	return b
}

// fill makes the base's pods and Services.
func (b *base) fill(t *testing.T) {
	t.Helper()
	p := b.start(t, b.server("srv1", "worker1", nil), b.server("srv2", "worker2", nil), b.idle("cli1", "worker1", nil), b.idle("cli2", "worker2", nil))
	b.srv1, b.srv2, b.cli1, b.cli2 = p[0], p[1], p[2], p[3]
	b.svc1 = b.service(t, "svc1", map[string]string{"pod": "srv1"}, nodePort1, nil).Spec.ClusterIP
	b.svc2 = b.service(t, "svc2", map[string]string{"pod": "srv2"}, nodePort2, nil).Spec.ClusterIP
}

// works waits until all connections to the base's servers work: its Services are in force, and no
// policy of a test before.
func (b *base) works(t *testing.T) {
	t.Helper()
	var ways [][2]any
	for _, s := range []struct {
		srv      *place
		ip       string
		nodePort int32
	}{{b.srv1, b.svc1, nodePort1}, {b.srv2, b.svc2, nodePort2}} {
		for _, from := range []*place{b.cli1, b.cli2} {
			ways = append(ways, [2]any{from, at(s.ip, whoPort)}, [2]any{from, at(s.srv.addr, whoPort)})
		}
		for i := 1; i <= 3; i++ {
			ways = append(ways, [2]any{b.client(i), at(cpAddr, s.nodePort+nodeWho)})
		}
	}
	eventually(t, 20*time.Second, "the base", func() error {
		for _, w := range ways {
			from, to := w[0].(*place), w[1].(string)
			if r := from.dial(t, to, 1); r.Failed > 0 {
				return fmt.Errorf("%v → %s: %v", from, to, r)
			}
		}
		return nil
	})
}

// places are the base's pods by name.
func (b *base) places() map[string]*place {
	return map[string]*place{"srv1": b.srv1, "srv2": b.srv2, "cli1": b.cli1, "cli2": b.cli2}
}

func (b *base) pods() []*place { return slices.Collect(maps.Values(b.places())) }

// intact is an error where the base's pods are not what they were when they were made.
func (b *base) intact() error {
	for name, p := range b.places() {
		if p == nil {
			return fmt.Errorf("pod %s was not made", name)
		}
		pod, err := b.kube.CoreV1().Pods(b.ns).Get(context.Background(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !isReady(pod) || pod.Status.PodIP != p.addr {
			return fmt.Errorf("pod %s is %s with address %s, was made with %s", name, pod.Status.Phase, pod.Status.PodIP, p.addr)
		}
	}
	return nil
}

// dropped removes the base, so that the next test makes one.
func (b *base) dropped() {
	b.removeNamespace(b.ns)
	shared = nil
}

// restore removes what a test made in the base's namespace, and its changes of labels.
func (b *base) restore() error {
	ctx := context.Background()
	now := int64(0)
	at0 := metav1.DeleteOptions{GracePeriodSeconds: &now}
	errs := []error{
		b.kube.NetworkingV1().NetworkPolicies(b.ns).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}),
		// Those that tests make by hand have no owner with which they would go.
		b.kube.DiscoveryV1().EndpointSlices(b.ns).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{
			LabelSelector: discoveryv1.LabelServiceName + " notin (svc1, svc2)"}),
		b.kube.CoreV1().Pods(b.ns).DeleteCollection(ctx, at0, metav1.ListOptions{LabelSelector: "pod notin (srv1, srv2, cli1, cli2)"}),
	}
	services, err := b.kube.CoreV1().Services(b.ns).List(ctx, metav1.ListOptions{})
	errs = append(errs, err)
	for _, s := range services.Items {
		if s.Name != "svc1" && s.Name != "svc2" {
			errs = append(errs, b.kube.CoreV1().Services(b.ns).Delete(ctx, s.Name, metav1.DeleteOptions{}))
		}
	}
	for name := range b.places() {
		pod, err := b.kube.CoreV1().Pods(b.ns).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if want := map[string]string{"pod": name}; !maps.Equal(pod.Labels, want) {
			pod.Labels = want
			_, err = b.kube.CoreV1().Pods(b.ns).Update(ctx, pod, metav1.UpdateOptions{})
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
