// SPDX-License-Identifier: Apache-2.0

// Package store makes a cluster of a benchmark large: it writes Services with their EndpointSlices,
// and other objects, directly into the API server's etcd, many at once, as the API server itself
// would store them. A hundred thousand Services take a minute that way; made through the API they
// take an hour.
package store

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes/scheme"
)

// Store is an API server's etcd, by its JSON gateway.
type Store struct {
	URL  string
	HTTP *http.Client
}

// Service is one to be made: TCP, and all of its endpoints ready.
type Service struct {
	Namespace, Name string
	// IP is of the cluster, and nobody else's. Invalid: the Service is there, and gets
	// EndpointSlices alone.
	IP        netip.Addr
	Port      uint16
	Endpoints []Endpoint
}

// Endpoint is an address and port without a pod. Those that follow each other with one port share
// slices.
type Endpoint struct {
	Addr netip.Addr
	Port uint16
	Node string
}

// slices divides endpoints as they are put into EndpointSlices; there is always one.
func (v *Service) slices() [][]Endpoint {
	var out [][]Endpoint
	for left := v.Endpoints; len(left) > 0; {
		n := 1
		for n < min(len(left), perSlice) && left[n].Port == left[0].Port {
			n++
		}
		out, left = append(out, left[:n]), left[n:]
	}
	if out == nil {
		out = append(out, nil)
	}
	return out
}

// transaction is how many entries are written at once: etcd's --max-txn-ops.
const transaction = 128

// portName is the name of every Service's port.
const portName = "http"

// perSlice is how many endpoints Kubernetes' controller puts into a slice.
const perSlice = 100

// Make writes Services that are not there yet. say is called with how many are done, now and then.
func (s *Store) Make(ctx context.Context, services []Service, say func(done int)) error {
	var puts []put
	reported := time.Now()
	for i := range services {
		more, err := services[i].puts()
		if err != nil {
			return err
		}
		for len(more) > 0 {
			n := min(len(more), transaction-len(puts))
			puts, more = append(puts, more[:n]...), more[n:]
			if len(puts) == transaction {
				if err := s.write(ctx, puts); err != nil {
					return fmt.Errorf("writing Services into etcd: %w", err)
				}
				puts = puts[:0]
			}
		}
		if say != nil && time.Since(reported) > 10*time.Second {
			reported = time.Now()
			say(i)
		}
	}
	if len(puts) == 0 {
		return nil
	}
	if err := s.write(ctx, puts); err != nil {
		return fmt.Errorf("writing Services into etcd: %w", err)
	}
	return nil
}

// put is an entry, as the gateway's JSON has it.
type put struct {
	Request struct {
		Key   []byte `json:"key"`
		Value []byte `json:"value"`
	} `json:"requestPut"`
}

// write makes one transaction of operations, as the gateway's JSON has them.
func (s *Store) write(ctx context.Context, operations any) error {
	body, err := json.Marshal(map[string]any{"success": operations})
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/v3/kv/txn", bytes.NewReader(body))
	if err != nil {
		return err
	}
	answer, err := s.HTTP.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("etcd answers %s: %.200s", answer.Status, text)
	}
	return err
}

// entry is the entry of an object of Kubernetes' own kinds.
func entry(key string, o runtime.Object, gv schema.GroupVersion) (put, error) {
	var value bytes.Buffer
	serializer := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	if err := scheme.Codecs.EncoderForVersion(serializer, gv).Encode(o, &value); err != nil {
		return put{}, fmt.Errorf("encoding %s: %w", key, err)
	}
	var p put
	p.Request.Key, p.Request.Value = []byte("/registry/"+key), value.Bytes()
	return p, nil
}

// puts are the entries of a Service, the EndpointSlices before it, so that it never is without.
func (v *Service) puts() ([]put, error) {
	id, now := uuid.NewUUID(), metav1.Now()
	meta := func(namespace, name string, labels map[string]string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uuid.NewUUID(), CreationTimestamp: now, Generation: 1, Labels: labels}
	}
	var out []put
	add := func(key string, o runtime.Object, gv schema.GroupVersion) error {
		p, err := entry(key, o, gv)
		out = append(out, p)
		return err
	}
	for i, of := range v.slices() {
		slice := v.slice(of)
		slice.ObjectMeta = meta(v.Namespace, fmt.Sprintf("%s-%05d", v.Name, i), map[string]string{
			discoveryv1.LabelServiceName: v.Name, discoveryv1.LabelManagedBy: "weir-bench"})
		if v.IP.IsValid() {
			slice.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: v.Name, UID: id}}
		}
		if err := add("endpointslices/"+v.Namespace+"/"+slice.Name, slice, discoveryv1.SchemeGroupVersion); err != nil {
			return nil, err
		}
	}
	if !v.IP.IsValid() {
		return out, nil
	}
	// What says that the address is taken (KEP-1880); without it the API server would look for the
	// reason.
	ip := &networkingv1.IPAddress{ObjectMeta: meta("", v.IP.String(), map[string]string{
		"ipaddress.kubernetes.io/ip-family": "IPv4", "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"}),
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: v.Namespace, Name: v.Name}}}
	if err := add("ipaddresses/"+ip.Name, ip, networkingv1.SchemeGroupVersion); err != nil {
		return nil, err
	}
	svc := v.service()
	svc.ObjectMeta = meta(v.Namespace, v.Name, nil)
	svc.UID = id
	err := add("services/specs/"+v.Namespace+"/"+v.Name, svc, corev1.SchemeGroupVersion)
	return out, err
}

func (v *Service) service() *corev1.Service {
	cluster, single := corev1.ServiceInternalTrafficPolicyCluster, corev1.IPFamilyPolicySingleStack
	return &corev1.Service{Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeClusterIP, ClusterIP: v.IP.String(), ClusterIPs: []string{v.IP.String()},
		IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, IPFamilyPolicy: &single, InternalTrafficPolicy: &cluster, SessionAffinity: corev1.ServiceAffinityNone,
		Ports: []corev1.ServicePort{{Name: portName, Protocol: corev1.ProtocolTCP, Port: int32(v.Port), TargetPort: intstr.FromInt32(int32(v.Port))}},
	}}
}

func (v *Service) slice(of []Endpoint) *discoveryv1.EndpointSlice {
	name, proto, port := portName, corev1.ProtocolTCP, int32(v.Port)
	if len(of) > 0 {
		port = int32(of[0].Port)
	}
	ready, no := true, false
	out := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: &name, Protocol: &proto, Port: &port}}}
	for i, e := range of {
		pod := fmt.Sprintf("%s-%d", v.Name, i)
		out.Endpoints = append(out.Endpoints, discoveryv1.Endpoint{Addresses: []string{e.Addr.String()}, NodeName: &e.Node,
			Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &ready, Terminating: &no},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: v.Namespace, Name: pod, UID: types.UID(pod)}})
	}
	return out
}
