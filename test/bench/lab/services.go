// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/weir-net/weir/internal/bench/lab"
	"github.com/weir-net/weir/internal/bench/store"
)

// fillers is the namespace of Services that only make a cluster large: each with two endpoints that
// nobody asks.
const fillers = "fillers"

// manyIPs is a second range of cluster IPs, the fillers' alone.
const manyIPs = "10.112.0.0/12"

const (
	fillerPort = 80
	// canary is a Service of the pod "far" that is made after the fillers: when it answers, they
	// are in force.
	canary = "canary"
)

// parseSizes reads "10,1000,10000".
func parseSizes(text string) ([]int, error) {
	var out []int
	for f := range strings.SplitSeq(text, ",") {
		if f = strings.TrimSpace(f); f == "" {
			continue
		}
		n, err := strconv.Atoi(f)
		if err != nil || n < 1 || n > 500_000 {
			return nil, fmt.Errorf("%q is not a number of Services from 1 to 500000", f)
		}
		if len(out) > 0 && n <= out[len(out)-1] {
			return nil, fmt.Errorf("sizes grow: %d comes after %d", n, out[len(out)-1])
		}
		out = append(out, n)
	}
	return out, nil
}

// grow makes the lab have size filler Services and waits until the last one is in force everywhere.
func (s *site) grow(ctx context.Context, size int) error {
	config, err := lab.REST(s.lab.Name)
	if err != nil {
		return err
	}
	config.ContentType = "application/vnd.kubernetes.protobuf"
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	if err := prepare(ctx, kube); err != nil {
		return err
	}
	began := time.Now()
	if err := lab.Store(s.lab.Name).Make(ctx, fillerServices(s.fillers, size), func(done int) {
		fmt.Printf("  %s: %d of %d Services, %.0f s\n", s.lab.Proxy, s.fillers+done, size, time.Since(began).Seconds())
	}); err != nil {
		return fmt.Errorf("filling lab %s: %w", s.lab.Name, err)
	}
	s.fillers = size
	made := time.Now()
	if err := s.awaitCanary(ctx, kube); err != nil {
		return err
	}
	fmt.Printf("  %s: %d Services after %.0f s, in force %.1f s later\n", s.lab.Proxy, size, made.Sub(began).Seconds(), time.Since(made).Seconds())
	return nil
}

// prepare makes the namespace, and the range of addresses.
func prepare(ctx context.Context, kube kubernetes.Interface) error {
	_, err := kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fillers}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	many := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "bench"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{manyIPs}}}
	if _, err := kube.NetworkingV1().ServiceCIDRs().Create(ctx, many, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("a second range of cluster IPs: %w", err)
	}
	return nil
}

// fillerServices are the Services numbered from first to below size. Their addresses belong to no
// pod.
func fillerServices(first, size int) []store.Service {
	var out []store.Service
	for i := first; i < size; i++ {
		end := func(n int, node string) store.Endpoint {
			at := 2*i + n
			return store.Endpoint{Addr: netip.AddrFrom4([4]byte{10, byte(200 + at>>16), byte(at >> 8), byte(at)}), Port: fillerPort, Node: node}
		}
		ip := i + 1 // not the first of the range
		out = append(out, store.Service{Namespace: fillers, Name: fmt.Sprintf("f%06d", i), Port: fillerPort,
			IP:        netip.AddrFrom4([4]byte{10, byte(112 + ip>>16), byte(ip >> 8), byte(ip)}),
			Endpoints: []store.Endpoint{end(0, "worker1"), end(1, "worker2")}})
	}
	return out
}

// awaitCanary makes a Service of the pod "far" anew and waits until it answers from the client pod.
// Its EndpointSlice is written here: the cluster's own controller takes minutes for one while it
// looks through 100,000 new Services.
func (s *site) awaitCanary(ctx context.Context, kube kubernetes.Interface) error {
	services, slices := kube.CoreV1().Services("default"), kube.DiscoveryV1().EndpointSlices("default")
	for _, remove := range []func(context.Context, string, metav1.DeleteOptions) error{services.Delete, slices.Delete} {
		if err := remove(ctx, canary, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	svc, err := services.Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: canary},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: httpPort}}}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	port, yes := int32(httpPort), true
	if _, err := slices.Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: canary, Labels: map[string]string{discoveryv1.LabelServiceName: canary}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new(string), Port: &port}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{s.far.Addr.String()}, NodeName: &s.far.Machine, Conditions: discoveryv1.EndpointConditions{Ready: &yes}}},
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	to := netip.AddrPortFrom(netip.MustParseAddr(svc.Spec.ClusterIP), httpPort).String()
	for began := time.Now(); ; {
		_, err := s.client.Bench(ctx, "get", to, "--patience", "1s")
		if err == nil {
			return nil
		}
		if ctx.Err() != nil || time.Since(began) > 5*time.Minute {
			return fmt.Errorf("lab %s: a Service made after the others does not answer: %w", s.lab.Name, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}
