// SPDX-License-Identifier: Apache-2.0

package client

import (
	"fmt"
	"os"

	"k8s.io/client-go/rest"

	"github.com/weir-net/weir/api/podenv"
)

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

// inCluster is the configuration of a pod, with the address of the API server that is configured.
func inCluster() (*rest.Config, error) {
	cfg, err := rest.InClusterConfig()
	if err != nil {
		return nil, err
	}
	if host := podenv.APIServer(); host != "" {
		cfg.Host = "https://" + host
	}
	return cfg, nil
}
