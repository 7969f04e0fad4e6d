// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"encoding/json"
	"log/slog"
	"net"
	"net/netip"
	"strings"

	"github.com/weir-net/weir/internal/cni/wire"
	"github.com/weir-net/weir/internal/ipam"
	"github.com/weir-net/weir/internal/kernel"
	"github.com/weir-net/weir/internal/noeffect"
)

// The annotations of pods, as manifests in the field have them.
const (
	annotationPrefix   = "cni.projectcalico.org/"
	annotationAddrs    = annotationPrefix + "ipAddrs"
	annotationPools4   = annotationPrefix + "ipv4pools"
	annotationPools6   = annotationPrefix + "ipv6pools"
	annotationMAC      = annotationPrefix + "hwAddr"
	annotationFamilies = annotationPrefix + "ipFamilies"
)

// applyAnnotations changes the request as the pod's annotations say. The error names the
// annotation.
func applyAnnotations(p Pod, req *ipam.Request, log *slog.Logger) *wire.Error {
	for _, a := range noeffect.Of("Pod", p.Annotations) {
		log.Warn("an annotation has no effect", "pod", p.Name.String(), "annotation", a.Name, "reason", a.Why)
	}
	bad := func(name, format string, args ...any) *wire.Error {
		args = append([]any{p.Name, name}, args...)
		return refusal(wire.CodeAnnotation, "pod %s: annotation %s: "+format, args...)
	}
	list := func(from map[string]string, name string) ([]string, *wire.Error) {
		text, ok := from[name]
		if !ok {
			return nil, nil
		}
		var out []string
		if err := json.Unmarshal([]byte(text), &out); err != nil {
			return nil, bad(name, `%.100q is not a JSON list of strings like ["a", "b"]`, text)
		}
		if len(out) == 0 {
			return nil, bad(name, "the list is empty: name at least one, or remove the annotation")
		}
		return out, nil
	}
	for _, family := range []struct {
		annotation string
		pools      *[]string
		from       *string
	}{{annotationPools4, &req.Pools4, &req.From4}, {annotationPools6, &req.Pools6, &req.From6}} {
		for _, annotations := range []map[string]string{p.Annotations, p.NamespaceAnnotations} {
			pools, err := list(annotations, family.annotation)
			if err != nil {
				return err
			}
			if pools != nil {
				*family.pools, *family.from = pools, "annotation "+family.annotation
				break
			}
		}
	}
	families, err := list(p.Annotations, annotationFamilies)
	if err != nil {
		return err
	}
	if families != nil {
		req.IPv4, req.IPv6 = false, false
	}
	for _, f := range families {
		switch strings.ToLower(f) {
		case "ipv4":
			req.IPv4 = true
		case "ipv6":
			req.IPv6 = true
		default:
			return bad(annotationFamilies, "%.40q is neither IPv4 nor IPv6", f)
		}
	}
	addrs, err := list(p.Annotations, annotationAddrs)
	if err != nil {
		return err
	}
	for _, text := range addrs {
		a, perr := netip.ParseAddr(text)
		if perr != nil || a.Zone() != "" || a.Is4In6() || a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() {
			return bad(annotationAddrs, "%.60q is not an address that a pod can have", text)
		}
		req.Fixed = append(req.Fixed, a)
	}
	if text, ok := p.Annotations[annotationMAC]; ok {
		mac, perr := net.ParseMAC(text)
		if perr != nil || len(mac) != 6 || mac[0]&1 != 0 || parseMAC(mac.String()) == [6]byte{} || parseMAC(mac.String()) == kernel.HostSideMAC {
			return bad(annotationMAC, "%.60q is not a unicast MAC address that a pod can have", text)
		}
		req.MAC = mac.String()
	}
	return nil
}
