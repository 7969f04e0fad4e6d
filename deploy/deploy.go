// SPDX-License-Identifier: Apache-2.0

// Package deploy holds what is installed in a cluster: CustomResourceDefinitions, rights, the
// DaemonSet of the agent and the Deployment of the controller. The same text goes to
// deploy/weir.yaml, for plain `kubectl apply -f`, and to `weir install`.
package deploy

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	quantity "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

//go:generate go -C .. run ./deploy/gen
//go:generate sh -c "go -C .. run ./cmd/weir install --dry-run > weir.yaml.new && mv weir.yaml.new weir.yaml"
//go:generate go -C .. run ./hack/monitoring

//go:embed crds/*.yaml manifests/* policy/*.yaml
var files embed.FS

// ManagedByLabel is, with the value ManagedBy, on those CustomResourceDefinitions of
// policy.networking.k8s.io that Weir brought.
const (
	ManagedByLabel = "app.kubernetes.io/managed-by"
	ManagedBy      = "weir"
)

// TierFinalizer keeps a Tier that was deleted until no policy is in it. The controller puts it on,
// and takes it off.
const TierFinalizer = "weir.dev/policies"

// PoolFinalizer keeps an IPPool that was deleted until it has no block and no pod an address of it,
// likewise.
const PoolFinalizer = "weir.dev/blocks"

// Namespace is where everything that has one is installed.
const Namespace = "kube-system"

// Options are what differs between clusters.
type Options struct {
	Image string
	// PodCIDR is the first IPPool's, or those of the first two, one of each family, with a comma
	// between; VXLANMode is Never, Always or CrossSubnet.
	PodCIDR, VXLANMode string
	// On is the CNI plugin that gives pods their addresses and interfaces in the place of Weir's:
	// one of Networks; empty = Weir's. It gives those of PodCIDR, and VXLANMode has no meaning
	// then. InterfacePrefix begins the names of pods' interfaces on the host.
	On, InterfacePrefix string
	// From is the network plugin that nodes have before, which agents take their nodes over from:
	// one of Before; empty = none. Agents run on nodes alone whose label NetworkLabel says so.
	From string
	// APIServerHost and APIServerPort are how nodes reach the API server without any Service; empty
	// = by its cluster IP, for which kube-proxy must run.
	APIServerHost, APIServerPort string
	// ServiceExternalIPs are the networks that spec.externalIPs of Services may name, with commas
	// between, or none; empty = all.
	ServiceExternalIPs string
	// FanOut says from whom agents have the cluster: auto = the fan-out where it has replicas,
	// otherwise the API server; never = always the API server; always = always the fan-out, and
	// agents have no rights to read the cluster by themselves.
	FanOut string
	// FanOutLastResort has agents read the API server in turns where no fan-out can be reached;
	// they have the rights for it, with always, too.
	FanOutLastResort bool
	// WireGuardGo installs WireGuard in user space, for nodes whose kernel has none.
	WireGuardGo bool
	// Flows installs the store of flow records, which keeps them for FlowsAge (a duration) and up
	// to FlowsSize (a quantity) on PersistentVolumeClaim FlowsClaim of Namespace; empty = in a
	// folder of its node, which goes with the pod. They are coarser from FlowsCoarseAfter on; 0s is
	// never. FlowsOTLP and FlowsIPFIX are where they go, too, empty = nowhere; FlowsExportTLS is
	// the Secret with ca.crt of these, and tls.crt and tls.key for them.
	Flows                                 bool
	FlowsAge, FlowsSize, FlowsClaim       string
	FlowsCoarseAfter                      string
	FlowsOTLP, FlowsIPFIX, FlowsExportTLS string
	// Hubble has agents serve Hubble's API by TLS at port 4244 of their nodes, with certificates of
	// an authority of Weir's.
	Hubble bool
	// PolicyDefaults has the API server ask the controller, by a webhook, what policies leave out.
	PolicyDefaults bool
	// UI installs the page in the browser for all users of the cluster. UIOrigins are further
	// origins by which browsers reach it, with commas between; UITLS is the Secret of type
	// kubernetes.io/tls of Namespace with its certificate, empty = one of Weir's authority.
	// UIAPIs serves Hubble's Observer API and Goldmane's over the store of flow records, too.
	UI, UIAPIs       bool
	UIOrigins, UITLS string
	// UIClientCA is the ConfigMap of Namespace with the authorities, ca.crt, of clients of UIAPIs
	// that need no token; empty = there are none.
	UIClientCA string
	// UIOIDC is the Secret of Namespace with the issuer of OpenID Connect at which users of the
	// page may log in: issuer, client-id, and, where they are needed, client-secret, scopes and
	// ca.crt.
	UIOIDC string
}

// Defaults are the options of deploy/weir.yaml.
func Defaults() Options {
	return Options{Image: "weir.local/weir:dev", PodCIDR: "10.244.0.0/16", VXLANMode: "CrossSubnet", FanOut: "auto", FlowsAge: "24h", FlowsSize: "4Gi", FlowsCoarseAfter: "12h"}
}

// NetworkLabel says of a Node which network it has while nodes change over from another plugin:
// NetworkWeir, or NetworkChanging while neither plugin's daemon runs there.
const (
	NetworkLabel    = "weir.dev/network"
	NetworkWeir     = "weir"
	NetworkChanging = "changing"
)

// Before are the values of From.
var Before = []string{"calico", "flannel"}

// Networks are the values of On, with how the names of pods' interfaces begin there by default.
var Networks = map[string]string{"generic": "veth", "aws-vpc-cni": "eni", "azure-cni": "azv", "azure-cni-overlay": "azv"}

// NetworkNames are the values of On, sorted.
func NetworkNames() []string { return slices.Sorted(maps.Keys(Networks)) }

// prefixRE is what config takes as interfacePrefix.
var prefixRE = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9]{0,3}$`)

// validateNetwork says what of On and InterfacePrefix cannot be.
func (o Options) validateNetwork() error {
	switch {
	case o.On == "" && o.InterfacePrefix == "":
		return nil
	case o.On == "":
		return errors.New("a prefix of the interfaces that another CNI plugin makes needs the name of that plugin")
	case Networks[o.On] == "":
		return fmt.Errorf("CNI plugin %q is none of %s", o.On, strings.Join(NetworkNames(), ", "))
	case !prefixRE.MatchString(o.InterfacePrefix):
		return fmt.Errorf("interface prefix %q is not one to four letters and digits, such as veth", o.InterfacePrefix)
	}
	return nil
}

// Validate says which option cannot be, and what it may be.
func (o Options) Validate() error {
	if o.Image == "" || strings.ContainsAny(o.Image, " \t\n\"'{}#") {
		return fmt.Errorf("image %q is not the name of an image", o.Image)
	}
	if _, err := podCIDRs(o.PodCIDR); err != nil {
		return err
	}
	if err := o.validateNetwork(); err != nil {
		return err
	}
	switch {
	case o.From != "" && !slices.Contains(Before, o.From):
		return fmt.Errorf("from %q is not supported: only %s are", o.From, strings.Join(Before, " and "))
	case o.From != "" && o.On != "":
		return errors.New("nodes are taken over from another network plugin, or it stays: from and on exclude each other")
	case o.From != "" && o.FanOut == "always":
		return errors.New("agents that take their nodes over from another network plugin need the right to look for their pods, which fan-out always takes away")
	}
	switch o.VXLANMode {
	case "Never", "Always", "CrossSubnet":
	default:
		return fmt.Errorf("VXLAN mode %q is none of Never, Always, CrossSubnet", o.VXLANMode)
	}
	switch o.FanOut {
	case "auto", "never", "always":
	default:
		return fmt.Errorf("fan-out %q is none of auto, never, always", o.FanOut)
	}
	if o.FanOutLastResort && o.FanOut == "never" {
		return errors.New("what agents do where no fan-out can be reached has no meaning with fan-out never")
	}
	if err := validNetworks(o.ServiceExternalIPs); err != nil {
		return err
	}
	if err := errors.Join(o.validateFlows(), o.validateUI()); err != nil {
		return err
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

// Addresses of collectors: what comes after is for weir-flows to look up.
var (
	otlpRE  = regexp.MustCompile(`^https?://([A-Za-z0-9.-]+|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?$`)
	ipfixRE = regexp.MustCompile(`^(tls|tcp|udp)://([A-Za-z0-9.-]+|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?$`)
)

// validateFlows says what of the store of flow records cannot be.
func (o Options) validateFlows() error {
	if !o.Flows {
		if o.FlowsClaim != "" {
			return errors.New("a PersistentVolumeClaim for flow records has no meaning without the store of them")
		}
		if o.FlowsOTLP+o.FlowsIPFIX+o.FlowsExportTLS != "" {
			return errors.New("collectors of flow records have no meaning without the store of them")
		}
		return nil
	}
	if age, err := time.ParseDuration(o.FlowsAge); err != nil || age < time.Minute {
		return fmt.Errorf("age of flow records %q is not a duration of a minute or more, such as 24h", o.FlowsAge)
	}
	if size, err := quantity.ParseQuantity(o.FlowsSize); err != nil || size.Value() < 1<<20 {
		return fmt.Errorf("size of flow records %q is not a quantity of 1Mi or more, such as 4Gi", o.FlowsSize)
	}
	if after, err := time.ParseDuration(o.FlowsCoarseAfter); err != nil || after < 0 {
		return fmt.Errorf("the age of coarser flow records %q is not a duration such as 12h, or 0s", o.FlowsCoarseAfter)
	}
	if o.FlowsOTLP != "" && !otlpRE.MatchString(o.FlowsOTLP) {
		return fmt.Errorf("collector of OTLP %q is not an address such as https://collector.example.com:4317, or http:// for one without TLS", o.FlowsOTLP)
	}
	if o.FlowsIPFIX != "" && !ipfixRE.MatchString(o.FlowsIPFIX) {
		return fmt.Errorf("collector of IPFIX %q is not an address such as tls://collector.example.com:4740, tcp:// or udp://", o.FlowsIPFIX)
	}
	if o.FlowsExportTLS != "" && (o.FlowsOTLP+o.FlowsIPFIX == "" || len(validation.IsDNS1123Subdomain(o.FlowsExportTLS)) > 0) {
		return fmt.Errorf("Secret %q for collectors of flow records is no name of one, or there is no collector", o.FlowsExportTLS)
	}
	if o.FlowsClaim != "" && len(validation.IsDNS1123Subdomain(o.FlowsClaim)) > 0 {
		return fmt.Errorf("PersistentVolumeClaim %q is no name of one", o.FlowsClaim)
	}
	return nil
}

// originRE is an origin of TLS as browsers write it.
var originRE = regexp.MustCompile(`^https://[a-z0-9.-]+(:[0-9]{1,5})?$`)

// validateUI says what of the page in the browser cannot be.
func (o Options) validateUI() error {
	if !o.UI && (o.UIOrigins != "" || o.UITLS != "" || o.UIOIDC != "" || o.UIAPIs) {
		return errors.New("origins, a certificate, an issuer and APIs of the page in the browser have no meaning without it")
	}
	if o.UIAPIs && !o.Flows {
		return errors.New("the APIs of Hubble and Goldmane are served over the store of flow records, which is to be installed, too")
	}
	if o.UIOrigins != "" {
		for origin := range strings.SplitSeq(o.UIOrigins, ",") {
			if !originRE.MatchString(origin) {
				return fmt.Errorf("origin %q of the page is not one such as https://weir.example.com", origin)
			}
		}
	}
	if o.UIClientCA != "" && (!o.UIAPIs || len(validation.IsDNS1123Subdomain(o.UIClientCA)) > 0) {
		return fmt.Errorf("the name %q is not that of a ConfigMap with authorities of clients of the page's APIs, or these are not to be installed", o.UIClientCA)
	}
	for _, name := range []string{o.UITLS, o.UIOIDC} {
		if name != "" && len(validation.IsDNS1123Subdomain(name)) > 0 {
			return fmt.Errorf("the name %q is not that of a Secret", name)
		}
	}
	return nil
}

// validNetworks says whether a text is empty, none, or CIDRs and addresses.
func validNetworks(text string) error {
	if text == "" || text == "none" {
		return nil
	}
	for _, w := range strings.Split(text, ",") {
		w = strings.TrimSpace(w)
		if _, err := netip.ParsePrefix(w); err == nil {
			continue
		}
		if _, err := netip.ParseAddr(w); err != nil {
			return fmt.Errorf("external IPs of Services: %q is not a CIDR such as 192.0.2.0/24", w)
		}
	}
	return nil
}

// podCIDRs reads the networks of the first pools: one, or one of each family.
func podCIDRs(text string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for word := range strings.SplitSeq(text, ",") {
		p, err := netip.ParsePrefix(word)
		switch {
		case err != nil || p != p.Masked() || p.Addr().Is4In6():
			return nil, fmt.Errorf("pod CIDR %q is not a network such as 10.244.0.0/16, nor one of each family such as 10.244.0.0/16,fd00:10:244::/56", text)
		case p.Addr().Is4() && p.Bits() > 26 || p.Addr().Is6() && p.Bits() > 122:
			return nil, fmt.Errorf("pod CIDR %s is smaller than one block (/26 for IPv4, /122 for IPv6)", p)
		case len(out) > 0 && (len(out) > 1 || out[0].Addr().Is4() == p.Addr().Is4()):
			return nil, fmt.Errorf("pod CIDR %q: one network of each family at most; make further IPPools later", text)
		}
		out = append(out, p)
	}
	return out, nil
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
				t, err := template.New(name).Funcs(noEffect).Parse(string(raw))
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

// PolicyDefinitions returns the CustomResourceDefinitions of policy.networking.k8s.io, which is not
// ours: they are for clusters that have none. Neither Render nor Objects has them, so that nobody's
// own become older by them.
func PolicyDefinitions() ([]*unstructured.Unstructured, error) {
	entries, err := fs.ReadDir(files, "policy")
	if err != nil {
		return nil, err
	}
	var out []*unstructured.Unstructured
	for _, e := range entries {
		raw, err := files.ReadFile("policy/" + e.Name())
		if err != nil {
			return nil, err
		}
		objects, err := Parse(raw)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.Name(), err)
		}
		out = append(out, objects...)
	}
	return out, nil
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

// DefaultObjects returns the first IPPools and the FelixConfiguration "default", that are made
// once, when there is none, and belong to the cluster's owner from then on. The pools are one for
// each network of podCIDR (Options): "default", and "default-ipv6" for IPv6 alongside IPv4.
func DefaultObjects(podCIDR, vxlanMode string) (pools []*unstructured.Unstructured, felix *unstructured.Unstructured, err error) {
	object := func(kind, name string, spec map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "projectcalico.org/v3", "kind": kind,
			"metadata": map[string]any{"name": name}, "spec": spec,
		}}
	}
	cidrs, err := podCIDRs(podCIDR)
	if err != nil {
		return nil, nil, err
	}
	for _, p := range cidrs {
		name := "default"
		if len(cidrs) > 1 && p.Addr().Is6() {
			name = "default-ipv6"
		}
		pools = append(pools, object("IPPool", name, map[string]any{"cidr": p.String(), "vxlanMode": vxlanMode, "natOutgoing": true, "nodeSelector": "all()"}))
	}
	return pools, object("FelixConfiguration", "default", map[string]any{"bpfEnabled": true}), nil
}

// OfOther makes first IPPools those of another CNI plugin (Options.On): Weir gives no address of
// them, encapsulates nothing and translates no source. They say which addresses pods may have.
func OfOther(pools []*unstructured.Unstructured) {
	for _, u := range pools {
		u.Object["spec"] = map[string]any{"cidr": u.Object["spec"].(map[string]any)["cidr"], "disabled": true, "vxlanMode": "Never", "natOutgoing": false, "nodeSelector": "all()"}
	}
}
