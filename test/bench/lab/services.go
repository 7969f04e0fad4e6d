package main

import (
	"context"
	"errors"
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
)

// fillers is the namespace of Services that only make a cluster large: each with two endpoints that nobody asks.
const fillers = "fillers"

// manyIPs is a second range of cluster IPs, for more Services than the lab's own range has addresses.
const manyIPs = "10.112.0.0/12"

const (
	creators   = 16 // objects under way at once
	fillerPort = 80
	// canary is a Service of the pod "far" that is made after the fillers: when it answers, they are in force.
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
	if err := prepare(ctx, kube, size); err != nil {
		return err
	}
	began := time.Now()
	if err := createAll(ctx, kube, s.fillers, size, func(done int) {
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

// prepare makes the namespace, and the second range of addresses where the first will not do.
func prepare(ctx context.Context, kube kubernetes.Interface, size int) error {
	_, err := kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fillers}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	if size < 50_000 {
		return nil
	}
	many := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "bench"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{manyIPs}}}
	if _, err := kube.NetworkingV1().ServiceCIDRs().Create(ctx, many, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("a second range of cluster IPs: %w", err)
	}
	return nil
}

// createAll makes the Services numbered from first to below size.
func createAll(ctx context.Context, kube kubernetes.Interface, first, size int, say func(done int)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	work := make(chan int)
	done := make(chan error, creators)
	for range creators {
		go func() {
			for i := range work {
				if err := createFiller(ctx, kube, i); err != nil {
					cancel(err)
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	told := time.Now()
	for i := first; i < size && ctx.Err() == nil; i++ {
		select {
		case work <- i:
		case <-ctx.Done():
		}
		if time.Since(told) > 10*time.Second {
			say(i - first)
			told = time.Now()
		}
	}
	close(work)
	var errs []error
	for range creators {
		errs = append(errs, <-done)
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return errors.Join(errs...)
}

// createFiller makes a Service and its EndpointSlice. Its addresses belong to no pod.
func createFiller(ctx context.Context, kube kubernetes.Interface, i int) error {
	name, port, ready, tcp := fmt.Sprintf("f%06d", i), int32(fillerPort), true, corev1.ProtocolTCP
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: port}}}}
	if _, err := kube.CoreV1().Services(fillers).Create(ctx, svc, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new(string), Port: &port, Protocol: &tcp}},
	}
	for n := range 2 {
		at := 2*i + n
		addr := netip.AddrFrom4([4]byte{10, byte(200 + at>>16), byte(at >> 8), byte(at)})
		node := []string{"worker1", "worker2"}[n]
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{addr.String()}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Ready: &ready}})
	}
	if _, err := kube.DiscoveryV1().EndpointSlices(fillers).Create(ctx, slice, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return nil
}

// awaitCanary makes a Service of the pod "far" anew and waits until it answers from the client pod.
func (s *site) awaitCanary(ctx context.Context, kube kubernetes.Interface) error {
	services := kube.CoreV1().Services("default")
	if err := services.Delete(ctx, canary, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	svc, err := services.Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: canary}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{"app": "far"}, Ports: []corev1.ServicePort{{Port: httpPort}}}}, metav1.CreateOptions{})
	if err != nil {
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
