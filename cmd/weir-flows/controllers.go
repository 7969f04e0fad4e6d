// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/weir-net/weir/internal/flowstore/names"
	"github.com/weir-net/weir/internal/sleep"
)

// controllerService is the Service of the controller, whose instances hand questions on.
const controllerService = "weir-controller"

// lookEvery is the time between two looks for instances of the controller.
const lookEvery = 5 * time.Second

// controllers knows where the instances of the controller are.
type controllers struct {
	kube kubernetes.Interface
	log  *slog.Logger

	mu  sync.Mutex
	are []string // host:port
}

// addrs returns the addresses that were read last.
func (c *controllers) addrs() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.are
}

// run looks until ctx ends. While the API server does not answer, what it said last counts.
func (c *controllers) run(ctx context.Context) {
	for said := ""; ; {
		text := ""
		if err := c.look(ctx); err != nil && ctx.Err() == nil {
			if text = err.Error(); text != said {
				c.log.Warn("the controller's instances are not known; trying again", "err", err)
			}
		}
		said = text
		if sleep.For(ctx, lookEvery) != nil {
			return
		}
	}
}

func (c *controllers) look(ctx context.Context) error {
	list, err := c.kube.DiscoveryV1().EndpointSlices(names.Namespace).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + controllerService, ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("list the EndpointSlices of Service %s: %w", controllerService, err)
	}
	var are []string
	for i := range list.Items {
		for _, p := range list.Items[i].Ports {
			if p.Port == nil {
				continue
			}
			for _, e := range list.Items[i].Endpoints {
				for _, a := range e.Addresses {
					are = append(are, net.JoinHostPort(a, strconv.Itoa(int(*p.Port))))
				}
			}
		}
	}
	slices.Sort(are)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.are = slices.Compact(are)
	return nil
}
