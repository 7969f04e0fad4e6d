// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
)

// instance is a VirtualMachineInstance (kubevirt.io/v1), as far as addresses go.
type instance struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Domain struct {
			Devices struct {
				Interfaces []struct {
					Name   string    `json:"name"`
					Bridge *struct{} `json:"bridge"`
				} `json:"interfaces"`
			} `json:"devices"`
		} `json:"domain"`
		Networks []struct {
			Name string    `json:"name"`
			Pod  *struct{} `json:"pod"`
		} `json:"networks"`
	} `json:"spec"`
	Status struct {
		NodeName   string            `json:"nodeName"`
		ActivePods map[string]string `json:"activePods"` // UID to node
		Interfaces []struct {
			Name string `json:"name"`
			MAC  string `json:"mac"`
		} `json:"interfaces"`
		Migration *struct {
			UID       string `json:"migrationUid"`
			TargetPod string `json:"targetPod"`
			Failed    bool   `json:"failed"`
		} `json:"migrationState"`
	} `json:"status"`
}

// migration is a VirtualMachineInstanceMigration.
type migration struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		VMIName string `json:"vmiName"`
	} `json:"spec"`
	Status struct {
		Phase string `json:"phase"`
	} `json:"status"`
}

func decode[T any](u *unstructured.Unstructured) (*T, error) {
	var out T
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &out); err != nil {
		return nil, err
	}
	return &out, nil
}

// owner is the UID of that which keeps the address: of the VirtualMachine that the instance belongs
// to, which outlives it, or else the instance's own.
func (v *instance) owner() string {
	if o := metav1.GetControllerOf(v); o != nil && o.Kind == "VirtualMachine" && isKubeVirt(o.APIVersion) {
		return string(o.UID)
	}
	return string(v.UID)
}

func isKubeVirt(apiVersion string) bool { return strings.HasPrefix(apiVersion, version.Group+"/") }

// mac is the MAC address of the machine's interface where it is a bridge to the pod's, ""
// otherwise: with the other bindings the pod's own interface is what has the address.
func (v *instance) mac() string {
	for _, n := range v.Spec.Networks {
		if n.Pod == nil {
			continue
		}
		for _, i := range v.Spec.Domain.Devices.Interfaces {
			if i.Name != n.Name || i.Bridge == nil {
				continue
			}
			for _, s := range v.Status.Interfaces {
				if s.Name == n.Name {
					return s.MAC
				}
			}
		}
	}
	return ""
}

// launcher is a pod in which a machine runs, or is to run.
type launcher struct {
	uid, name, node string
	addrs           []netip.Addr
	migration       string // UID of the migration that it was made for
	created         time.Time
}

// launchers returns those of an instance: pods that it owns and that KubeVirt says it has. KubeVirt
// believes what pods say of their owners, so admission has only those make such pods who may speak
// for the instance (25-addresses.yaml).
func (v *instance) launchers(pods []corev1.Pod) (out []launcher) {
	for i := range pods {
		p := &pods[i]
		o := metav1.GetControllerOf(p)
		if o == nil || o.UID != v.UID || o.Kind != "VirtualMachineInstance" || !isKubeVirt(o.APIVersion) {
			continue
		}
		if node, active := v.Status.ActivePods[string(p.UID)]; !active || p.Spec.NodeName == "" || node != "" && node != p.Spec.NodeName {
			continue
		}
		if p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		l := launcher{uid: string(p.UID), name: p.Name, node: p.Spec.NodeName, migration: p.Labels[model.LabelKubeVirtMigration], created: p.CreationTimestamp.Time}
		for _, ip := range p.Status.PodIPs {
			if a, err := netip.ParseAddr(ip.IP); err == nil {
				l.addrs = append(l.addrs, a.Unmap())
			}
		}
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b launcher) int {
		if c := a.created.Compare(b.created); c != 0 {
			return c
		}
		return strings.Compare(a.uid, b.uid)
	})
	return out
}

// place says where a machine runs and where it is moved to; nil = not known, or not at all. moving
// are the UIDs of the migrations of the instance that go on.
func (v *instance) place(of []launcher, moving map[string]bool) (home, target *launcher) {
	for i := range of {
		l := &of[i]
		switch {
		case home != nil:
		case v.Status.NodeName != "" && l.node == v.Status.NodeName, v.Status.NodeName == "" && len(of) == 1:
			home = l
		}
	}
	if home == nil {
		return nil, nil
	}
	state := v.Status.Migration
	for i := range of {
		l := &of[i]
		if l == home || l.node == home.node || !moving[l.migration] || state != nil && state.UID == l.migration && state.Failed {
			continue
		}
		if target == nil || state != nil && state.TargetPod == l.name {
			target = l
		}
	}
	return home, target
}

// settle makes a block say where its machine is, and reports whether it did not. A target that has
// made itself the block's node stays that until the migration is given up.
func settle(s *weirv1.IPAMBlockSpec, name, owner, mac string, home, target *launcher) bool {
	want := weirv1.BlockVirtualMachine{Name: name, UID: owner, Pod: home.uid, MAC: mac}
	if want.MAC == "" {
		want.MAC = s.VirtualMachine.MAC // it is said again once the machine runs
	}
	node := home.node
	if target != nil {
		want.Target = &weirv1.BlockTarget{Node: target.node, Pod: target.uid}
		if t := s.VirtualMachine.Target; t != nil && *t == *want.Target && s.Node == target.node {
			node = target.node
		}
	}
	have := *s.VirtualMachine
	same := s.Node == node && (have.Target == nil) == (want.Target == nil) && (want.Target == nil || *have.Target == *want.Target)
	have.Target, s.Node = nil, node
	of := want
	of.Target = nil
	same = same && have == of
	s.VirtualMachine = &want
	return !same
}
