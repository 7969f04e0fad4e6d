// SPDX-License-Identifier: Apache-2.0

package loadbalancer

import (
	"encoding/json"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
)

// The annotations of a Service by which addresses and pools are asked for, each a JSON list.
const (
	annotationAddrs  = "projectcalico.org/loadBalancerIPs"
	annotationPools4 = "projectcalico.org/ipv4pools"
	annotationPools6 = "projectcalico.org/ipv6pools"
)

// maxAnnotation bounds what is parsed of an annotation, in bytes.
const maxAnnotation = 4096

// request is what a Service asks for.
type request struct {
	addr4, addr6   netip.Addr // invalid: any
	from           string     // where the addresses come from, for messages
	pools4, pools6 []string
	err            error
}

// explicit reports whether the Service asks for anything in particular.
func (r *request) explicit() bool {
	return r.err != nil || r.addr4.IsValid() || r.addr6.IsValid() || len(r.pools4)+len(r.pools6) > 0
}

func (r *request) wantsAddr(v6 bool) netip.Addr {
	if v6 {
		return r.addr6
	}
	return r.addr4
}

func (r *request) named(v6 bool) []string {
	if v6 {
		return r.pools6
	}
	return r.pools4
}

// newRequest reads a Service. The annotation of addresses counts rather than spec.loadBalancerIP,
// which is deprecated.
func newRequest(s *corev1.Service) *request {
	r := &request{}
	if text := s.Annotations[annotationAddrs]; text != "" {
		r.from = "annotation " + annotationAddrs
		var list []string
		if list, r.err = parseList(annotationAddrs, text); r.err == nil {
			r.addAddrs(list)
		}
	} else if text := s.Spec.LoadBalancerIP; text != "" {
		r.from = "spec.loadBalancerIP"
		r.addAddrs([]string{text})
	}
	for _, p := range []struct {
		key  string
		into *[]string
	}{{annotationPools4, &r.pools4}, {annotationPools6, &r.pools6}} {
		if text := s.Annotations[p.key]; text != "" && r.err == nil {
			*p.into, r.err = parseList(p.key, text)
		}
	}
	return r
}

func (r *request) addAddrs(list []string) {
	for _, text := range list {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" {
			r.err = fmt.Errorf("%s: %.64q is not an IP address", r.from, text)
			return
		}
		a = a.Unmap()
		into := &r.addr4
		if a.Is6() {
			into = &r.addr6
		}
		if into.IsValid() && *into != a {
			r.err = fmt.Errorf("%s: %s and %s are asked for: at most one address a family is possible", r.from, *into, a)
			return
		}
		*into = a
	}
}

func parseList(key, text string) ([]string, error) {
	var list []string
	if len(text) > maxAnnotation {
		return nil, fmt.Errorf("annotation %s is longer than %d bytes", key, maxAnnotation)
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, fmt.Errorf(`annotation %s: %.64q is not a JSON list such as ["a", "b"]`, key, text)
	}
	return list, nil
}
