// SPDX-License-Identifier: Apache-2.0

// Package podenv is what Weir's pods are told by their environment and by ConfigMap weir-config. It
// needs no library of Kubernetes: programs that are to be small use it, too.
package podenv

import (
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// ConfigDir is where Weir's pods have the ConfigMap weir-config, a file for each key. It is
// mounted, because a container whose environment refers to a ConfigMap is not started again while
// the API server is away.
const ConfigDir = "/etc/weir/config"

// Configured returns what is configured by a variable of the environment, or else by a key of the
// ConfigMap; empty = neither.
func Configured(variable, key string) string {
	if v := os.Getenv(variable); v != "" {
		return v
	}
	return fromFile(ConfigDir, key)
}

// APIServer returns host:port of the API server that is configured in the place of the one that
// each pod is told; empty = none is.
func APIServer() string { return apiServer(os.Getenv, ConfigDir) }

// apiServer returns host:port of the ConfigMap, unless the environment names an API server of
// its own. Each pod's environment names the Service's address: that one is in KUBERNETES_PORT
// too, as a URL.
func apiServer(env func(string) string, dir string) string {
	host, port := env("KUBERNETES_SERVICE_HOST"), env("KUBERNETES_SERVICE_PORT")
	service, err := url.Parse(env("KUBERNETES_PORT"))
	if err != nil || host != "" && (host != service.Hostname() || port != service.Port()) {
		return ""
	}
	host, port = fromFile(dir, "kubernetes_service_host"), fromFile(dir, "kubernetes_service_port")
	if host == "" {
		return ""
	}
	if port == "" {
		port = "443"
	}
	return net.JoinHostPort(host, port)
}

func fromFile(dir, key string) string {
	raw, err := os.ReadFile(filepath.Join(dir, key))
	if err != nil {
		return "" // no such key, or no such ConfigMap
	}
	return strings.TrimSpace(string(raw))
}
