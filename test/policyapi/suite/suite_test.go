// SPDX-License-Identifier: Apache-2.0

//go:build conformance

// Package suite runs the conformance suite of sigs.k8s.io/network-policy-api as it is, in a cluster
// whose kernel has no SCTP sockets.
package suite

import (
	"bytes"
	"compress/gzip"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	api "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/network-policy-api/conformance/tests"
	timeouts "sigs.k8s.io/network-policy-api/conformance/utils/config"
	"sigs.k8s.io/network-policy-api/conformance/utils/suite"
)

var (
	program = flag.String("sctp", "", "program that replaces agnhost where SCTP is wanted, see ../sctp")
	request = flag.Duration("request-timeout", 0, "how long a client waits for a connection; the suite's own time when 0")
)

// TestConformance runs every test of the suite, those of experimental features too.
func TestConformance(t *testing.T) {
	cfg, err := config.GetConfig()
	if err != nil {
		t.Fatalf("load the cluster's configuration: %v", err)
	}
	cfg.QPS, cfg.Burst = 50, 100
	packed, err := pack(*program)
	if err != nil {
		t.Fatalf("pack the SCTP program: %v", err)
	}
	plain, err := client.NewWithWatch(cfg, client.Options{})
	if err != nil {
		t.Fatalf("make a client: %v", err)
	}
	if err := api.Install(plain.Scheme()); err != nil {
		t.Fatalf("install the scheme: %v", err)
	}
	clients, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatalf("make a client: %v", err)
	}
	s := suite.New(suite.Options{
		Client:                     interceptor.NewClient(plain, interceptor.Funcs{Create: furnish(packed)}),
		ClientSet:                  clients,
		KubeConfig:                 *cfg,
		EnableAllSupportedFeatures: true,
		CleanupBaseResources:       true,
		TimeoutConfig:              timeouts.TimeoutConfig{NamespacesMustBeReady: 10 * time.Minute, RequestTimeout: *request},
	})
	s.Setup(t)
	s.Run(t, tests.ConformanceTests)
}

func pack(path string) ([]byte, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(b); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	if n := out.Len(); n > 1<<20 {
		return nil, fmt.Errorf("%d bytes are more than a ConfigMap holds", n)
	}
	return out.Bytes(), nil
}
