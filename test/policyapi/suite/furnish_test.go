// SPDX-License-Identifier: Apache-2.0

//go:build conformance

package suite

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// image is the agnhost that the lab has.
const image = "registry.k8s.io/e2e-test-images/agnhost:2.56"

// packedName is the ConfigMap of the SCTP program, one in each namespace of the suite.
const packedName = "weir-sctp"

// furnish changes what the suite creates, as a mutating webhook would: each namespace gets the SCTP
// program, and in the pods it runs in front of agnhost in the containers that are SCTP servers, or
// clients. The suite's own commands stay as they are.
func furnish(packed []byte) func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
	return func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
		u, ok := o.(*unstructured.Unstructured)
		switch {
		case ok && u.GetKind() == "StatefulSet":
			if err := standBefore(u); err != nil {
				return fmt.Errorf("change StatefulSet %s: %w", u.GetName(), err)
			}
		case ok && u.GetKind() == "Namespace":
			if err := c.Create(ctx, o, opts...); err != nil {
				return err
			}
			return c.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: u.GetName(), Name: packedName},
				BinaryData: map[string][]byte{"sctp.gz": packed}})
		}
		return c.Create(ctx, o, opts...)
	}
}

const unpack = "gzip -dc /packed/sctp.gz > /tools/agnhost && chmod 755 /tools/agnhost && cp /agnhost /tools/agnhost.real"

func standBefore(u *unstructured.Unstructured) error {
	pod := []string{"spec", "template", "spec"}
	containers, found, err := unstructured.NestedSlice(u.Object, append(pod, "containers")...)
	if err != nil || !found {
		return fmt.Errorf("it has no containers: %w", err)
	}
	changed := 0
	for i := range containers {
		c := containers[i].(map[string]any)
		c["image"] = image
		if wantsSCTP(c) {
			c["volumeMounts"] = []any{
				map[string]any{"name": "tools", "mountPath": "/agnhost", "subPath": "agnhost"},
				map[string]any{"name": "tools", "mountPath": "/tools"},
			}
			c["securityContext"] = map[string]any{"capabilities": map[string]any{"add": []any{"NET_RAW"}}}
			changed++
		}
	}
	if changed < 3 {
		return fmt.Errorf("%d of its containers are clients or SCTP servers, expected three: the suite has changed", changed)
	}
	for _, field := range []struct {
		name  string
		value []any
	}{
		{"containers", containers},
		{"initContainers", []any{map[string]any{"name": "tools", "image": image, "command": []any{"/bin/sh", "-c", unpack},
			"volumeMounts": []any{map[string]any{"name": "tools", "mountPath": "/tools"}, map[string]any{"name": "packed", "mountPath": "/packed"}}}}},
		{"volumes", []any{map[string]any{"name": "tools", "emptyDir": map[string]any{}},
			map[string]any{"name": "packed", "configMap": map[string]any{"name": packedName}}}},
	} {
		if err := unstructured.SetNestedSlice(u.Object, field.value, append(pod, field.name)...); err != nil {
			return err
		}
	}
	return nil
}

// wantsSCTP reports whether a container is a client, or serves SCTP.
func wantsSCTP(container map[string]any) bool {
	if name, _ := container["name"].(string); strings.HasSuffix(name, "-client") {
		return true
	}
	env, _, _ := unstructured.NestedSlice(container, "env")
	for _, e := range env {
		if v, ok := e.(map[string]any); ok && strings.HasPrefix(fmt.Sprint(v["name"]), "SERVE_SCTP_PORT_") {
			return true
		}
	}
	return false
}
