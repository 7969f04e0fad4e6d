// SPDX-License-Identifier: Apache-2.0

// Package clientset is package client with client-go's clientset alongside it, for programs that
// read and write more kinds of Kubernetes than an agent does. It is a package of its own because of
// its size: the clientset registers every kind that there is.
package clientset

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/weir-net/weir/api/client"
)

// Clients are the paths to the API server; all are safe for concurrent use.
type Clients struct {
	*client.Clients
	Kube kubernetes.Interface
}

// New connects with a tuned copy of cfg. No request is sent yet.
func New(cfg *rest.Config, userAgent string) (*Clients, error) {
	base, err := client.New(cfg, userAgent)
	if err != nil {
		return nil, err
	}
	typed := client.Tune(cfg, userAgent)
	typed.ContentType = runtime.ContentTypeProtobuf
	typed.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	kube, err := kubernetes.NewForConfig(typed)
	if err != nil {
		return nil, fmt.Errorf("prepare the client of %s: %w", cfg.Host, err)
	}
	return &Clients{Clients: base, Kube: kube}, nil
}
