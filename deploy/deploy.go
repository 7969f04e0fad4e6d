// Package deploy holds what is installed in a cluster: CustomResourceDefinitions, rights, the DaemonSet of
// the agent and the Deployment of the controller. The same text goes to deploy/weir.yaml, for plain
// `kubectl apply -f`, and to `weir install`.
package deploy

import (
	"bytes"
	"embed"
	"fmt"
	"io/fs"
	"net/netip"
	"strconv"
	"strings"
	"text/template"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

//go:generate go -C .. run ./deploy/gen
//go:generate sh -c "go -C .. run ./cmd/weir install --dry-run > weir.yaml.new && mv weir.yaml.new weir.yaml"

//go:embed crds/*.yaml manifests/*
var files embed.FS

// Namespace is where everything that has one is installed.
const Namespace = "kube-system"

// Options are what differs between clusters.
type Options struct {
	Image string
	// PodCIDR is the first IPPool's; VXLANMode is Never, Always or CrossSubnet.
	PodCIDR, VXLANMode string
	// APIServerHost and APIServerPort are how nodes reach the API server without any Service; empty =
	// by its cluster IP, for which kube-proxy must run.
	APIServerHost, APIServerPort string
}

// Defaults are the options of deploy/weir.yaml.
func Defaults() Options {
	return Options{Image: "weir.local/weir:dev", PodCIDR: "10.244.0.0/16", VXLANMode: "CrossSubnet"}
}

// Validate says which option cannot be, and what it may be.
func (o Options) Validate() error {
	if o.Image == "" || strings.ContainsAny(o.Image, " \t\n\"'{}#") {
		return fmt.Errorf("image %q is not the name of an image", o.Image)
	}
	p, err := netip.ParsePrefix(o.PodCIDR)
	if err != nil || p != p.Masked() {
		return fmt.Errorf("pod CIDR %q is not a network such as 10.244.0.0/16", o.PodCIDR)
	}
	if p.Addr().Is4() && p.Bits() > 26 || p.Addr().Is6() && p.Bits() > 122 {
		return fmt.Errorf("pod CIDR %s is smaller than one block (/26 for IPv4, /122 for IPv6)", p)
	}
	switch o.VXLANMode {
	case "Never", "Always", "CrossSubnet":
	default:
		return fmt.Errorf("VXLAN mode %q is none of Never, Always, CrossSubnet", o.VXLANMode)
	}
	if (o.APIServerHost == "") != (o.APIServerPort == "") {
		return fmt.Errorf("API server %q port %q: both or none", o.APIServerHost, o.APIServerPort)
	}
	if o.APIServerPort != "" {
		if n, err := strconv.ParseUint(o.APIServerPort, 10, 16); err != nil || n == 0 {
			return fmt.Errorf("API server port %q is not within 1..65535", o.APIServerPort)
		}
	}
	return nil
}

// Render returns all manifests as one YAML text, in the order in which they are to be applied.
func Render(o Options) ([]byte, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	out.WriteString("# Weir. Made by `weir install --dry-run`; with plain kubectl: kubectl apply -f deploy/weir.yaml\n")
	for _, dir := range []string{"crds", "manifests"} {
		entries, err := fs.ReadDir(files, dir)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			name := dir + "/" + e.Name()
			raw, err := files.ReadFile(name)
			if err != nil {
				return nil, err
			}
			if strings.HasSuffix(name, ".tmpl") {
				t, err := template.New(name).Parse(string(raw))
				if err != nil {
					return nil, err
				}
				var b bytes.Buffer
				if err := t.Execute(&b, o); err != nil {
					return nil, err
				}
				raw = b.Bytes()
			}
			out.WriteString("---\n")
			out.Write(raw)
		}
	}
	return out.Bytes(), nil
}

// Objects returns the same as objects.
func Objects(o Options) ([]*unstructured.Unstructured, error) {
	text, err := Render(o)
	if err != nil {
		return nil, err
	}
	return Parse(text)
}

// Parse splits a YAML text into objects. Empty documents are skipped; errors name the document.
func Parse(text []byte) ([]*unstructured.Unstructured, error) {
	var out []*unstructured.Unstructured
	for i, doc := range bytes.Split(append([]byte("\n"), text...), []byte("\n---")) {
		var m map[string]any
		if err := yaml.Unmarshal(doc, &m); err != nil {
			return nil, fmt.Errorf("document %d is not YAML: %w", i+1, err)
		}
		if len(m) == 0 {
			continue
		}
		u := &unstructured.Unstructured{Object: m}
		if u.GetKind() == "" || u.GetAPIVersion() == "" {
			return nil, fmt.Errorf("document %d has no kind or no apiVersion", i+1)
		}
		if items, ok := m["items"].([]any); ok && strings.HasSuffix(u.GetKind(), "List") {
			for _, item := range items {
				im, ok := item.(map[string]any)
				if !ok {
					return nil, fmt.Errorf("document %d has an item that is no object", i+1)
				}
				out = append(out, &unstructured.Unstructured{Object: im})
			}
			continue
		}
		out = append(out, u)
	}
	return out, nil
}

// DefaultObjects returns the IPPool and the FelixConfiguration "default", that are made once, when there
// is none, and belong to the cluster's owner from then on.
func DefaultObjects(podCIDR, vxlanMode string) (pool, felix *unstructured.Unstructured) {
	object := func(kind string, spec map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "projectcalico.org/v3", "kind": kind,
			"metadata": map[string]any{"name": "default"}, "spec": spec,
		}}
	}
	return object("IPPool", map[string]any{"cidr": podCIDR, "vxlanMode": vxlanMode, "natOutgoing": true, "nodeSelector": "all()"}),
		object("FelixConfiguration", map[string]any{"bpfEnabled": true})
}
