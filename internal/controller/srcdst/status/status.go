// SPDX-License-Identifier: Apache-2.0

// Package status is what the controller says of the source/destination checks that it switches
// (package srcdst): which setting is in force on how many nodes, and on which it is not, and why.
// It is in ConfigMap weir-srcdst-status in kube-system, which the controller writes and `weir
// status` reads.
package status

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	namespace = "kube-system"
	// Name is that of the ConfigMap, which the manifests make.
	Name = "weir-srcdst-status"
	key  = "status"
)

// maxFailed bounds what is said of single nodes.
const maxFailed = 50

// Status is what is said. The zero value = awsSrcDstCheck is DoNothing.
type Status struct {
	Setting string    `json:"setting"`          // awsSrcDstCheck: Enable, Disable
	InForce int       `json:"inForce"`          // nodes whose checks are so
	Others  int       `json:"others"`           // nodes that are no instances of EC2
	Failed  []Failure `json:"failed,omitempty"` // nodes on which it is not in force, by name
	More    int       `json:"more,omitempty"`   // that failed besides
	Error   string    `json:"error,omitempty"`  // what keeps it from all nodes that are not in force
}

// Failure is why the setting is not in force on a node.
type Failure struct {
	Node string `json:"node"`
	Why  string `json:"why"`
}

// Write says it, where something else is said.
func Write(ctx context.Context, kube kubernetes.Interface, s Status) error {
	if n := len(s.Failed); n > maxFailed {
		s.Failed, s.More = s.Failed[:maxFailed], n-maxFailed
	}
	text := ""
	if s.Setting != "" {
		raw, err := json.Marshal(s)
		if err != nil {
			return err
		}
		text = string(raw)
	}
	maps := kube.CoreV1().ConfigMaps(namespace)
	m, err := maps.Get(ctx, Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get ConfigMap %s: %w", Name, err)
	}
	if m.Data[key] == text {
		return nil
	}
	m.Data = map[string]string{key: text}
	if _, err := maps.Update(ctx, m, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update ConfigMap %s: %w", Name, err)
	}
	return nil
}

// Read returns what was said last; the zero value where nothing was, or where it may not be read.
func Read(ctx context.Context, kube kubernetes.Interface) (s Status, err error) {
	m, err := kube.CoreV1().ConfigMaps(namespace).Get(ctx, Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("get ConfigMap %s: %w", Name, err)
	}
	if text := m.Data[key]; text != "" {
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			return s, fmt.Errorf("ConfigMap %s: %w", Name, err)
		}
	}
	return s, nil
}

// Words are a line about what is in force, and one for each node, or about all, where it is not.
// They are empty with DoNothing.
func (s Status) Words() (inForce string, problems []string) {
	if s.Setting == "" {
		return "", nil
	}
	inForce = fmt.Sprintf("awsSrcDstCheck %s on %d nodes", s.Setting, s.InForce)
	if s.Others > 0 {
		inForce += fmt.Sprintf(", %d are no instances of EC2 (spec.providerID)", s.Others)
	}
	begin := "awsSrcDstCheck " + s.Setting
	if s.Error != "" {
		problems = append(problems, begin+": "+s.Error)
	}
	for _, f := range s.Failed {
		problems = append(problems, fmt.Sprintf("%s: node %s: %s", begin, f.Node, f.Why))
	}
	if s.More > 0 {
		problems = append(problems, fmt.Sprintf("%s: %d more nodes; see `kubectl -n kube-system logs deploy/weir-controller`", begin, s.More))
	}
	return inForce, problems
}
