// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/selector"
)

var (
	hostEndpointResource = v3.SchemeGroupVersion.WithResource("hostendpoints")
	controllersResource  = v3.SchemeGroupVersion.WithResource("kubecontrollersconfigurations")
)

// createdBy is the label that distinguishes automatic host endpoints from those that somebody made.
const createdBy, creator = model.HostEndpointCreatedBy, model.HostEndpointCreator

// hostEndpointSuffix follows the node's name in that of its automatic host endpoint.
const hostEndpointSuffix = "-auto-hep"

// hostEndpoints keeps the host endpoints of nodes that KubeControllersConfiguration "default" asks
// for (controllers.node.hostEndpoint with autoCreate Enabled): one of all interfaces for each node,
// unless createDefaultHostEndpoint is Disabled, and those of templates. None that it made stays
// otherwise.
func (c *Controller) hostEndpoints(ctx context.Context) error {
	api := c.cfg.Dynamic.Resource(hostEndpointResource)
	list, err := api.List(ctx, metav1.ListOptions{LabelSelector: createdBy + "=" + creator})
	if apierrors.IsNotFound(err) {
		return nil // the definitions are older than this program
	}
	if err != nil {
		return fmt.Errorf("list HostEndpoints: %w", err)
	}
	wanted, unsure, err := c.wantedHostEndpoints(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for i := range list.Items {
		have := &list.Items[i]
		want := wanted[have.GetName()]
		delete(wanted, have.GetName())
		switch {
		case want == nil && unsure[nodeOf(have)]:
			err = nil // it may be that of a template that cannot be understood
		case want == nil:
			err = api.Delete(ctx, have.GetName(), metav1.DeleteOptions{})
			if err == nil {
				c.log.Info("removed an automatic host endpoint", "name", have.GetName())
			}
		case !reflect.DeepEqual(have.Object["spec"], want.Object["spec"]) || !maps.Equal(have.GetLabels(), want.GetLabels()):
			want.SetResourceVersion(have.GetResourceVersion())
			_, err = api.Update(ctx, want, metav1.UpdateOptions{})
		default:
			err = nil
		}
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("HostEndpoint %s: %w", have.GetName(), err))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		_, err := api.Create(ctx, wanted[name], metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			c.once("HostEndpoint "+name, "a HostEndpoint has the name of an automatic one and not its label: it is left as it is", "name", name, "label", createdBy+"="+creator)
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("create HostEndpoint %s: %w", name, err))
			continue
		}
		c.log.Info("made an automatic host endpoint", "name", name)
	}
	return errors.Join(errs...)
}

// once logs a warning the first time that it is about this.
func (c *Controller) once(about, msg string, args ...any) {
	if !c.warned[about] {
		c.warned[about] = true
		c.log.Warn(msg, args...)
	}
}

// wantedHostEndpoints returns the automatic host endpoints by name, and the nodes that may have
// more: a template that cannot be understood makes none, and takes away none that it made before.
func (c *Controller) wantedHostEndpoints(ctx context.Context) (wanted map[string]*unstructured.Unstructured, unsure map[string]bool, err error) {
	u, err := c.cfg.Dynamic.Resource(controllersResource).Get(ctx, "default", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("get KubeControllersConfiguration default: %w", err)
	}
	var conf v3.KubeControllersConfiguration
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &conf); err != nil {
		return nil, nil, fmt.Errorf("read KubeControllersConfiguration default: %w", err)
	}
	node := conf.Spec.Controllers.Node
	if node == nil || node.HostEndpoint == nil || node.HostEndpoint.AutoCreate != "Enabled" {
		return nil, nil, nil
	}
	// The published types know interfacePattern by the name that it had before.
	raw, _, _ := unstructured.NestedSlice(u.Object, "spec", "controllers", "node", "hostEndpoint", "templates")
	for i := range min(len(raw), len(node.HostEndpoint.Templates)) {
		if m, is := raw[i].(map[string]any); is && m["interfacePattern"] != nil {
			node.HostEndpoint.Templates[i].InterfaceSelector = fmt.Sprint(m["interfacePattern"])
		}
	}
	templates := c.hostTemplates(node.HostEndpoint.Templates)
	interfaces, err := c.interfaces(ctx, templates)
	if err != nil {
		return nil, nil, err
	}
	nodes, err := c.cfg.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, nil, fmt.Errorf("list nodes: %w", err)
	}
	wanted, unsure = map[string]*unstructured.Unstructured{}, map[string]bool{}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		// An agent that is older, or new, reports no interfaces.
		unsure[n.Name] = len(templates) < len(node.HostEndpoint.Templates) || interfaces != nil && len(interfaces[n.Name]) == 0
		if node.HostEndpoint.CreateDefaultHostEndpoint != v3.DefaultHostEndpointsDisabled {
			h := autoHostEndpoint(n, n.Name+hostEndpointSuffix, model.AllInterfaces, nodeAddresses(n, nil), nil)
			wanted[h.GetName()] = h
		}
	}
	// Those that are named after interfaces last: their nodes say what these are called, and take
	// no other one's name by that.
	for _, byName := range []bool{false, true} {
		for i := range nodes.Items {
			for _, t := range templates {
				if (t.pattern != nil) != byName {
					continue
				}
				for _, h := range t.of(&nodes.Items[i], interfaces[nodes.Items[i].Name]) {
					if other := wanted[h.GetName()]; other != nil {
						c.once("template "+h.GetName(), "two automatic host endpoints would have one name: that of a template is not made; give it another generateName",
							"name", h.GetName(), "nodes", nodeOf(h)+" "+nodeOf(other), "generateName", t.GenerateName)
						continue
					}
					wanted[h.GetName()] = h
				}
			}
		}
	}
	return wanted, unsure, nil
}

// interfaces are those of each node, as their agents report them; nil where no template asks.
func (c *Controller) interfaces(ctx context.Context, templates []hostTemplate) (map[string][]weirv1.NodeInterface, error) {
	if !slices.ContainsFunc(templates, func(t hostTemplate) bool { return t.pattern != nil }) {
		return nil, nil
	}
	statuses, err := c.statuses.List(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string][]weirv1.NodeInterface{}
	for i := range statuses {
		out[statuses[i].Name] = statuses[i].Status.Interfaces
	}
	return out, nil
}

func nodeOf(h *unstructured.Unstructured) string {
	name, _, _ := unstructured.NestedString(h.Object, "spec", "node")
	return name
}

// hostTemplate makes host endpoints of nodes: of the interface with their addresses in some
// networks, or of each interface whose name matches.
type hostTemplate struct {
	*v3.Template
	nodes   *selector.Selector
	nets    []netip.Prefix
	pattern *regexp.Regexp // nil = names do not matter
}

// hostTemplates reads templates. One that cannot be understood makes none, and the log says so.
func (c *Controller) hostTemplates(list []v3.Template) (out []hostTemplate) {
	for i := range list {
		t := hostTemplate{Template: &list[i]}
		field := fmt.Sprintf("spec.controllers.node.hostEndpoint.templates[%d]", i)
		var err error
		if t.nodes, err = selector.Parse(t.NodeSelector); err != nil {
			err = fmt.Errorf("nodeSelector: %w", err)
		}
		for _, text := range t.InterfaceCIDRs {
			p, wrong := netip.ParsePrefix(text)
			if wrong != nil {
				err = fmt.Errorf("interfaceCIDRs: %w", wrong)
			}
			t.nets = append(t.nets, p.Masked())
		}
		if t.InterfaceSelector != "" {
			var wrong error
			if t.pattern, wrong = regexp.Compile(t.InterfaceSelector); wrong != nil {
				err = fmt.Errorf("interfacePattern: %w", wrong)
			}
		}
		switch {
		case err != nil:
		case len(t.nets) == 0 && t.pattern == nil:
			err = errors.New("neither interfaceCIDRs nor interfacePattern")
		case t.GenerateName == "":
			err = errors.New("no generateName")
		}
		if err != nil {
			c.once(field+err.Error(), "KubeControllersConfiguration default: a template of host endpoints is not in force", "field", field, "error", err)
			continue
		}
		out = append(out, t)
	}
	return out
}

// of are the host endpoints of a node, none where the template is not for it. Where names do not
// matter it is the one of the node's addresses in the networks; otherwise each interface has one,
// with these addresses and its own.
func (t *hostTemplate) of(n *corev1.Node, interfaces []weirv1.NodeInterface) (out []*unstructured.Unstructured) {
	label := func(key string) (string, bool) {
		v, ok := n.Labels[key]
		return v, ok
	}
	if !t.nodes.MatchesFunc(label) {
		return nil
	}
	var ips []any
	if len(t.nets) > 0 {
		ips = nodeAddresses(n, t.nets)
	}
	if t.pattern == nil {
		if len(ips) > 0 {
			out = append(out, autoHostEndpoint(n, n.Name+"-"+t.GenerateName+hostEndpointSuffix, "", ips, t.Labels))
		}
		return out
	}
	for _, i := range interfaces {
		if !t.pattern.MatchString(i.Name) {
			continue
		}
		own := slices.Clone(ips)
		for _, text := range i.Addresses {
			if a, err := netip.ParseAddr(text); err == nil && !slices.Contains(own, any(a.String())) {
				own = append(own, a.String())
			}
		}
		out = append(out, autoHostEndpoint(n, interfaceHostEndpoint(n.Name, t.GenerateName, i.Name), i.Name, own, t.Labels))
	}
	return out
}

// interfaceHostEndpoint names the host endpoint of an interface as Calico does, where that is a
// name that objects may have and no other node could take by what it calls its interfaces.
func interfaceHostEndpoint(node, template, iface string) string {
	name := node + "-" + template + "-" + iface + hostEndpointSuffix
	if strings.Contains(iface, "-") || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return fmt.Sprintf("%s-%x%s", node, sha256.Sum256([]byte(template+"/"+iface)), hostEndpointSuffix)
	}
	return name
}

// nodeAddresses are those in a node's status, of these networks where there are some.
func nodeAddresses(n *corev1.Node, nets []netip.Prefix) (out []any) {
	for _, a := range n.Status.Addresses {
		if a.Type != corev1.NodeInternalIP && a.Type != corev1.NodeExternalIP || slices.Contains(out, any(a.Address)) {
			continue
		}
		ip, err := netip.ParseAddr(a.Address)
		if nets == nil || err == nil && model.Within(nets, ip) {
			out = append(out, a.Address)
		}
	}
	return out
}

// autoHostEndpoint is a host endpoint of a node, which allows everything until policy selects it.
// It has the node's labels, and these.
func autoHostEndpoint(n *corev1.Node, name, iface string, ips []any, more map[string]string) *unstructured.Unstructured {
	spec := map[string]any{"node": n.Name, "profiles": []any{model.ProfileDefaultAllow}}
	if iface != "" {
		spec["interfaceName"] = iface
	}
	if len(ips) > 0 {
		spec["expectedIPs"] = ips
	}
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": v3.GroupVersionCurrent, "kind": v3.KindHostEndpoint, "spec": spec}}
	u.SetName(name)
	labels := map[string]string{}
	maps.Copy(labels, n.Labels)
	maps.Copy(labels, more)
	labels[createdBy] = creator
	u.SetLabels(labels)
	return u
}
