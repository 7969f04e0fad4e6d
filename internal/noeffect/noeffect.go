// SPDX-License-Identifier: Apache-2.0

// Package noeffect lists what users of projectcalico.org/v3 write and what changes nothing in Weir:
// annotations of Pods and Services, and fields of kinds that no agent reads. The fields of a
// FelixConfiguration are internal/config's. From these lists are made the warnings of the API
// server when something is written, the events about objects, and what `weir status` and
// `weir apply` say. It reads no API.
package noeffect

import (
	"fmt"
	"slices"
	"strings"
)

// Annotation is an annotation without effect.
type Annotation struct {
	Kind string // of the object that has it
	Name string
	Why  string // in words, to follow "has no effect: "
}

// Annotations are all of them, by kind and name.
var Annotations = []Annotation{
	{"Pod", "cni.projectcalico.org/ipAddrsNoIpam", "every address of a pod is of an IPPool"},
	{"Service", "projectcalico.org/natExcludeService", "what is not to be translated, bpfExcludeCIDRsFromNAT of FelixConfiguration names by its cluster IP"},
}

// Of returns those that an object of a kind has.
func Of(kind string, annotations map[string]string) []Annotation {
	if len(annotations) == 0 {
		return nil
	}
	var out []Annotation
	for _, a := range Annotations {
		if _, has := annotations[a.Name]; has && a.Kind == kind {
			out = append(out, a)
		}
	}
	return out
}

// Field is a field without effect.
type Field struct {
	Kind string
	Path []string // from the object's root
	// Default are the values, as texts, with which the field says what is so in any case.
	Default []string
	Why     string // in words, to follow "has no effect: "
}

// Name is the path as people write it: spec.controllers.policy.
func (f Field) Name() string { return strings.Join(f.Path, ".") }

const ipamConfiguration = "IPAMConfiguration"

const kubeControllers = "KubeControllersConfiguration"

// notNeeded says why controllers of Calico's etcd mode have nothing to do.
const notNeeded = "the objects of Kubernetes are read as they are, so this controller has nothing to do"

// Fields are all of them.
var Fields = []Field{
	{ipamConfiguration, under("autoAllocateBlocks"), []string{"true"}, "a node claims a block when it needs one; maxBlocksPerHost bounds how many"},
	{kubeControllers, under("logSeverityScreen"), []string{"Info"}, "what is logged is up to the flags of weir-controller"},
	{kubeControllers, under("healthChecks"), []string{"Enabled"}, "the probes of weir-controller are always there"},
	{kubeControllers, under("etcdV3CompactionPeriod"), []string{"10m", "10m0s"}, "Weir has no etcd of its own"},
	{kubeControllers, under("prometheusMetricsPort"), []string{"9094"}, "the port of weir-controller's metrics is a flag"},
	{kubeControllers, under("debugProfilePort"), []string{"0"}, "weir-controller serves no profiles there"},
	{kubeControllers, under("controllers", "node", "reconcilerPeriod"), []string{"5m", "5m0s"}, "weir-controller looks every 30 seconds"},
	{kubeControllers, under("controllers", "node", "syncLabels"), []string{"Enabled"}, "the labels of Nodes are read as they are"},
	{kubeControllers, under("controllers", "node", "leakGracePeriod"), []string{"15m", "15m0s"}, "each agent releases what no pod of its node has, and weir-controller blocks of Nodes that are gone for five minutes"},
	{kubeControllers, under("controllers", "policy", "reconcilerPeriod"), []string{"5m", "5m0s"}, notNeeded},
	{kubeControllers, under("controllers", "workloadEndpoint", "reconcilerPeriod"), []string{"5m", "5m0s"}, notNeeded},
	{kubeControllers, under("controllers", "serviceAccount", "reconcilerPeriod"), []string{"5m", "5m0s"}, notNeeded},
	{kubeControllers, under("controllers", "namespace", "reconcilerPeriod"), []string{"5m", "5m0s"}, notNeeded},
}

func under(path ...string) []string { return append([]string{"spec"}, path...) }

// FieldsOf returns the fields without effect that an object of a kind has, with their values as
// texts. Fields that say what is so in any case are left out.
func FieldsOf(kind string, object map[string]any) (fields []Field, values []string) {
	for _, f := range Fields {
		if f.Kind != kind {
			continue
		}
		at, has := any(object), true
		for _, name := range f.Path {
			m, is := at.(map[string]any)
			if at, has = m[name]; !is || !has {
				break
			}
		}
		if !has || at == nil {
			continue
		}
		if text := fmt.Sprint(at); !slices.Contains(f.Default, text) {
			fields, values = append(fields, f), append(values, text)
		}
	}
	return fields, values
}
