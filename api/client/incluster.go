// SPDX-License-Identifier: Apache-2.0

package client

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/client-go/rest"
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

// Instance is a name that no other process of a program has: that of its pod, or else the host's
// with the process's number.
func Instance() string {
	if n := os.Getenv("POD_NAME"); n != "" {
		return n
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s-%d", host, os.Getpid())
}

// StreamFirstObjects has watches get the first objects one by one (KEP-3157) rather than as lists,
// which are held as a whole, unless the environment decides on that. It is called before New.
func StreamFirstObjects() {
	const gate = "KUBE_FEATURE_WatchListClient"
	if os.Getenv(gate) == "" {
		_ = os.Setenv(gate, "true") // fails for names that are not valid only
	}
}

func fromFile(dir, key string) string {
	raw, err := os.ReadFile(filepath.Join(dir, key))
	if err != nil {
		return "" // no such key, or no such ConfigMap
	}
	return strings.TrimSpace(string(raw))
}

// inCluster is the configuration of a pod, with the address of the API server that is configured.
func inCluster() (*rest.Config, error) {
	cfg, err := rest.InClusterConfig()
	if err != nil {
		return nil, err
	}
	if host := configuredHost(os.Getenv, ConfigDir); host != "" {
		cfg.Host = "https://" + host
	}
	return cfg, nil
}

// configuredHost returns host:port of the ConfigMap, unless the environment names an API server of
// its own. Each pod's environment names the Service's address: that one is in KUBERNETES_PORT
// too, as a URL.
func configuredHost(env func(string) string, dir string) string {
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
