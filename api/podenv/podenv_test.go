// SPDX-License-Identifier: Apache-2.0

package podenv

import (
	"os"
	"path/filepath"
	"testing"
)

func TestAPIServer(t *testing.T) {
	injected := map[string]string{"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443", "KUBERNETES_PORT": "tcp://10.96.0.1:443"}
	injected6 := map[string]string{"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443", "KUBERNETES_PORT": "tcp://[fd00::1]:443"}
	set := map[string]string{"KUBERNETES_SERVICE_HOST": "192.0.2.9", "KUBERNETES_SERVICE_PORT": "6443", "KUBERNETES_PORT": "tcp://10.96.0.1:443"}
	for _, c := range []struct {
		what  string
		env   map[string]string
		files map[string]string
		want  string
	}{
		{"nothing is configured", injected, nil, ""},
		{"the ConfigMap", injected, map[string]string{"kubernetes_service_host": "192.0.2.10\n", "kubernetes_service_port": "6443"}, "192.0.2.10:6443"},
		{"the ConfigMap, IPv6", injected6, map[string]string{"kubernetes_service_host": "fd00::9", "kubernetes_service_port": "6443"}, "[fd00::9]:6443"},
		{"the ConfigMap without a port", injected, map[string]string{"kubernetes_service_host": "api.example.com"}, "api.example.com:443"},
		{"an empty value", injected, map[string]string{"kubernetes_service_host": ""}, ""},
		{"the environment of the DaemonSet wins", set, map[string]string{"kubernetes_service_host": "192.0.2.10", "kubernetes_service_port": "6443"}, ""},
		{"only another port", map[string]string{"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "6443", "KUBERNETES_PORT": "tcp://10.96.0.1:443"},
			map[string]string{"kubernetes_service_host": "192.0.2.10"}, ""},
		{"no Service is injected", map[string]string{"KUBERNETES_SERVICE_HOST": "192.0.2.9", "KUBERNETES_SERVICE_PORT": "6443"},
			map[string]string{"kubernetes_service_host": "192.0.2.10"}, ""},
	} {
		dir := t.TempDir()
		for key, v := range c.files {
			if err := os.WriteFile(filepath.Join(dir, key), []byte(v), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := apiServer(func(k string) string { return c.env[k] }, dir); got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}
