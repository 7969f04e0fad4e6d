// SPDX-License-Identifier: Apache-2.0

package calico

import (
	"encoding/json"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// text reads a string of an object; "" where there is none.
func text(u *unstructured.Unstructured, path ...string) string {
	s, _, _ := unstructured.NestedString(u.Object, path...)
	return s
}

func flag(u *unstructured.Unstructured, path ...string) bool {
	b, _, _ := unstructured.NestedBool(u.Object, path...)
	return b
}

// installation looks at how Calico runs.
func (p *planner) installation() {
	for _, u := range p.ofKind("ClusterInformation") {
		p.plan.Version = text(u, "spec", "calicoVersion")
	}
	if p.Operated {
		p.stop("Installation default", "", "", "the operator of Calico sets its DaemonSet back to what it was",
			"kubectl -n tigera-operator scale deployment tigera-operator --replicas=0")
	}
	if p.Served {
		p.stop("APIService "+APIService, "", "", "Calico's API server serves projectcalico.org/v3, and hides Weir's definitions of these kinds",
			"kubectl delete apiservice "+APIService+"; the objects stay, as those of "+Group)
	}
	if p.Daemon == nil {
		p.stop("DaemonSet "+NodeDaemon, "", "", "is not there: this is no cluster with Calico, or Calico is not kept by its manifests", "")
		return
	}
	name := "DaemonSet " + p.Daemon.Namespace + "/" + p.Daemon.Name
	for i := range p.Daemon.Spec.Template.Spec.Containers {
		c := &p.Daemon.Spec.Template.Spec.Containers[i]
		if c.Name != NodeDaemon {
			continue
		}
		for _, e := range c.Env {
			value := p.value(e)
			switch {
			case strings.HasPrefix(strings.ToUpper(e.Name), "FELIX_"):
				p.environ = append(p.environ, e.Name+"="+value)
			case e.Name == "DATASTORE_TYPE" && value != "kubernetes":
				p.stop(name, e.Name, value, "Calico's objects are not in the Kubernetes API", "move them there: calicoctl datastore migrate")
			case e.Name == variableBackend && value == bird:
				p.speaksBGP(name, value)
			case e.Name == "FELIX_TYPHAK8SSERVICENAME" && value != "" && value != "none":
				p.differs(name, e.Name, value, "Weir has no use for Typha: its fan-out takes that place in large clusters", "remove it at the end")
			}
		}
	}
	p.conflist()
}

// value is that of a variable, as far as it can be known without a pod.
func (p *planner) value(e corev1.EnvVar) string {
	if e.ValueFrom == nil || e.ValueFrom.ConfigMapKeyRef == nil {
		return e.Value
	}
	if p.Config != nil && e.ValueFrom.ConfigMapKeyRef.Name == configMap {
		return p.Config.Data[e.ValueFrom.ConfigMapKeyRef.Key]
	}
	return e.Value
}

// conflist looks at the plugins that pods are started with.
func (p *planner) conflist() {
	const object, field = "ConfigMap " + configMap, "data.cni_network_config"
	if p.Config == nil {
		return
	}
	raw := p.Config.Data["cni_network_config"]
	var conf struct {
		Plugins []struct{ Type string }
	}
	// A number stands in for what Calico's installer fills in without quotes.
	if err := json.Unmarshal([]byte(strings.ReplaceAll(raw, "__CNI_MTU__", "0")), &conf); err != nil {
		p.stop(object, field, "", "cannot be read: "+err.Error(), "")
		return
	}
	for _, plugin := range conf.Plugins {
		switch plugin.Type {
		case "calico", "portmap": // Weir carries host ports itself
		default:
			p.differs(object, field+".plugins", plugin.Type, "is not called by Weir, whose plugin is the only one of its list", "")
		}
	}
}

// network looks at pools and BGP.
func (p *planner) network() {
	for _, u := range p.ofKind("IPPool") {
		p.pool(u)
	}
	for _, u := range p.ofKind("BGPPeer") {
		p.differs("BGPPeer "+u.GetName(), "", "", "the session of a node ends with Calico, and begins again as one of weir-bgp", howLong(p.inPlace))
	}
}

func (p *planner) pool(u *unstructured.Unstructured) {
	object := "IPPool " + u.GetName()
	cidr, err := netip.ParsePrefix(text(u, "spec", "cidr"))
	if err != nil {
		p.stop(object, "spec.cidr", text(u, "spec", "cidr"), "cannot be read: "+err.Error(), "correct it")
		return
	}
	if p.inPlace {
		p.poolInPlace(u, cidr)
		return
	}
	if !flag(u, "spec", "disabled") {
		p.differs(object, "spec.disabled", "false", "is copied with true: while Calico gives addresses of "+cidr.String()+", Weir would give the same ones",
			"install Weir with another --pod-cidr, and enable the pool when no node has Calico any more")
	}
	if mode(u, "vxlanMode") == never && mode(u, "ipipMode") == never {
		p.differs(object, "spec.vxlanMode", text(u, "spec", "vxlanMode"), "nodes on one link reach each other's pods by Weir's own routes; across links it needs BGP",
			"set vxlanMode: CrossSubnet where nodes are in several subnets, or see docs/guides/bgp.md")
	}
}
