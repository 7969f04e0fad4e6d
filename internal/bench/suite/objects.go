// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	// Label marks all namespaces of benchmarks.
	Label     = "weir.dev/bench"
	container = "bench"
	program   = "/weir-bench"
	// servicePort is of the Service and of the servers behind it, TCP and UDP.
	servicePort = 5201
	secretName  = "token"
	account     = "bench"
)

func newToken() (string, error) {
	raw := make([]byte, 32)
	if _, err := rand.Read(raw); err != nil {
		return "", fmt.Errorf("making a token: %w", err)
	}
	return hex.EncodeToString(raw), nil
}

// newNamespace is a name that no other run has: it is known before the namespace is made, so that
// it can be removed whatever becomes of that.
func newNamespace() string { return "weir-bench-" + strings.ToLower(rand.Text()[:10]) }

// namespaceObject is for all but started pods. Pods in the nodes' networks are what the others are
// compared with, so it is privileged.
func namespaceObject(o *Options, name string) *corev1.Namespace {
	return labelled(o, name, "run", "privileged")
}

// startedNamespace is for the pods that control/pod starts.
func startedNamespace(o *Options, name string) *corev1.Namespace {
	return labelled(o, name, "started", "restricted")
}

func labelled(o *Options, name, what, level string) *corev1.Namespace {
	labels := map[string]string{Label: what}
	for _, mode := range []string{"enforce", "warn", "audit"} {
		labels["pod-security.kubernetes.io/"+mode] = level
	}
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels, Annotations: map[string]string{"weir.dev/bench-by": "weir " + o.Version}}}
}

// podObject is a pod that serves, and in which clients are run. It has no rights on its node, ends
// by itself, and is bound to its node whatever keeps other pods off.
func podObject(o *Options, name, node string, limit int64, control bool) *corev1.Pod {
	host := name == podServerHost || name == podClientHost
	yes, no := true, false
	nobody := int64(65532)
	grace := int64(1)
	port := fmt.Sprint(servicePort)
	if name == podClient || name == podNear {
		port = "0"
	}
	if host {
		port = fmt.Sprint(o.HostPort)
	}
	env := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
	}
	address := "status.podIP"
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{Label: name}},
		Spec: corev1.PodSpec{
			NodeName: node, HostNetwork: host, HostPID: host, RestartPolicy: corev1.RestartPolicyNever, ActiveDeadlineSeconds: &limit,
			TerminationGracePeriodSeconds: &grace, AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
			Tolerations:     []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: &yes, RunAsUser: &nobody, RunAsGroup: &nobody, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers: []corev1.Container{{
				Name: container, Image: o.Image, ImagePullPolicy: corev1.PullIfNotPresent,
				Command: []string{program, "agent", "--port", port, "--limit", fmt.Sprintf("%ds", limit)},
				Env: []corev1.EnvVar{
					{Name: "WEIR_BENCH_TOKEN", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
						LocalObjectReference: corev1.LocalObjectReference{Name: secretName}, Key: "token"}}},
					env("WEIR_BENCH_ADDR", address), env("WEIR_BENCH_NAME", "metadata.name"),
				},
				SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
			}},
		},
	}
	if control && name == podClient {
		p.Spec.ServiceAccountName, p.Spec.AutomountServiceAccountToken = account, &yes
	}
	return p
}

// serviceObject is in front of the server's pod.
func serviceObject(o *Options, name string, kind corev1.ServiceType) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
		Type: kind, Selector: map[string]string{Label: podServer},
		Ports: []corev1.ServicePort{
			{Name: "tcp", Protocol: corev1.ProtocolTCP, Port: servicePort, TargetPort: intstr.FromInt32(servicePort)},
			{Name: "udp", Protocol: corev1.ProtocolUDP, Port: servicePort, TargetPort: intstr.FromInt32(servicePort)},
		}}}
	if o.IPFamily != "" {
		s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPFamily(o.IPFamily)}
	}
	return s
}

// changeRules are the rights of the client's pod in the namespace of the run, for the rows of the
// control plane.
func changeRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, ResourceNames: []string{sliceName}, Verbs: []string{"patch"}},
		{APIGroups: []string{"networking.k8s.io"}, Resources: []string{"networkpolicies"}, ResourceNames: []string{policyName}, Verbs: []string{"patch"}},
	}
}

// startRules are its rights in the namespace of the pods that it starts.
func startRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"create", "delete"}}}
}

// grant gives rules to the account of a namespace.
func grant(rules []rbacv1.PolicyRule, namespace string) (*rbacv1.Role, *rbacv1.RoleBinding) {
	meta := metav1.ObjectMeta{Name: account}
	return &rbacv1.Role{ObjectMeta: meta, Rules: rules},
		&rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: account},
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: account, Namespace: namespace}}}
}

// Objects that the rows of the control plane change.
const (
	sliceName   = "moving"
	movingName  = "moving"
	policyName  = "changing"
	startedName = "started-"
)
