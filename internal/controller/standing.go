// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/weir-net/weir/internal/model"
)

var (
	informationResource       = v3.SchemeGroupVersion.WithResource("clusterinformations")
	ipamConfigurationResource = v3.SchemeGroupVersion.WithResource("ipamconfigurations")
)

// standingTiers are the tiers that are in force whatever objects say, and that clients of
// projectcalico.org look up by name.
var standingTiers = []string{model.TierAdmin, model.TierDefault, model.TierBaseline}

// standing makes the objects that clients of projectcalico.org expect in every cluster, where they
// are missing: the built-in Tiers, ClusterInformation, IPAMConfiguration and
// KubeControllersConfiguration "default", in whose status it says what this program does. They
// belong to the cluster's owner from then on. A kind whose definition is missing has none.
func (c *Controller) standing(ctx context.Context) error {
	var errs []error
	for _, name := range standingTiers {
		tier, _ := (&model.Cluster{}).Tier(name)
		action := string(v3.Deny)
		if tier.Pass {
			action = string(v3.Pass)
		}
		errs = append(errs, c.ensure(ctx, tierResource, v3.KindTier, name, func(context.Context) (map[string]any, error) {
			return map[string]any{"order": int64(tier.Order), "defaultAction": action}, nil
		}))
	}
	errs = append(errs,
		c.ensure(ctx, informationResource, v3.KindClusterInformation, "default", c.information),
		c.ensure(ctx, ipamConfigurationResource, v3.KindIPAMConfiguration, "default", func(context.Context) (map[string]any, error) {
			return map[string]any{"strictAffinity": true, "autoAllocateBlocks": true, "maxBlocksPerHost": int64(0)}, nil
		}),
		c.ensure(ctx, controllersResource, v3.KindKubeControllersConfiguration, "default", func(context.Context) (map[string]any, error) { return unset(), nil }),
		c.runningConfig(ctx))
	return errors.Join(errs...)
}

// ensure makes an object where there is none of its name.
func (c *Controller) ensure(ctx context.Context, r schema.GroupVersionResource, kind, name string, spec func(context.Context) (map[string]any, error)) error {
	_, err := c.cfg.Dynamic.Resource(r).Get(ctx, name, metav1.GetOptions{ResourceVersion: "0"})
	if err == nil {
		return nil
	}
	if !apierrors.IsNotFound(err) {
		return fmt.Errorf("get %s %s: %w", kind, name, err)
	}
	of, err := spec(ctx)
	if err != nil {
		return err
	}
	_, err = c.cfg.Dynamic.Resource(r).Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v3.GroupVersionCurrent, "kind": kind, "metadata": map[string]any{"name": name}, "spec": of}}, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("create %s %s: %w", kind, name, err)
	}
	c.log.Info("made an object that clients expect", "kind", kind, "name", name)
	return nil
}

// information is what ClusterInformation says at first. It names no version of Calico: clients
// refuse to work with another one than theirs. The identifier is the cluster's own.
func (c *Controller) information(ctx context.Context) (map[string]any, error) {
	system, err := c.cfg.Kube.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get namespace %s, whose UID identifies the cluster: %w", metav1.NamespaceSystem, err)
	}
	return map[string]any{"clusterGUID": strings.ReplaceAll(string(system.UID), "-", ""), "clusterType": "k8s,kdd,weir", "datastoreReady": true, "variant": "Calico"}, nil
}

// unset is what is in force of a KubeControllersConfiguration that says nothing.
func unset() map[string]any {
	return map[string]any{"controllers": map[string]any{
		"node":         map[string]any{"hostEndpoint": map[string]any{"autoCreate": "Disabled", "createDefaultHostEndpoint": string(v3.DefaultHostEndpointsEnabled)}},
		"loadBalancer": map[string]any{"assignIPs": string(v3.AllServices)},
	}}
}

// runningConfig says in the status of KubeControllersConfiguration "default" what of it is in
// force.
func (c *Controller) runningConfig(ctx context.Context) error {
	u, err := c.cfg.Dynamic.Resource(controllersResource).Get(ctx, "default", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get KubeControllersConfiguration default: %w", err)
	}
	var conf v3.KubeControllersConfiguration
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &conf); err != nil {
		return fmt.Errorf("read KubeControllersConfiguration default: %w", err)
	}
	var running v3.KubeControllersConfigurationSpec
	node := &v3.NodeControllerConfig{HostEndpoint: &v3.AutoHostEndpointConfig{AutoCreate: "Disabled", CreateDefaultHostEndpoint: v3.DefaultHostEndpointsEnabled}}
	if n := conf.Spec.Controllers.Node; n != nil && n.HostEndpoint != nil {
		h := *n.HostEndpoint
		if h.AutoCreate != "Enabled" {
			h.AutoCreate = "Disabled"
		}
		if h.CreateDefaultHostEndpoint != v3.DefaultHostEndpointsDisabled {
			h.CreateDefaultHostEndpoint = v3.DefaultHostEndpointsEnabled
		}
		node.HostEndpoint = &h
	}
	running.Controllers.Node = node
	if l := conf.Spec.Controllers.LoadBalancer; l != nil {
		running.Controllers.LoadBalancer = &v3.LoadBalancerControllerConfig{AssignIPs: v3.AllServices}
		if l.AssignIPs == v3.RequestedServicesOnly {
			running.Controllers.LoadBalancer.AssignIPs = l.AssignIPs
		}
	}
	want, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&running)
	if err != nil {
		return fmt.Errorf("write the status of KubeControllersConfiguration default: %w", err)
	}
	if have, _, _ := unstructured.NestedMap(u.Object, "status", "runningConfig"); reflect.DeepEqual(have, want) {
		return nil
	}
	if err := unstructured.SetNestedMap(u.Object, want, "status", "runningConfig"); err != nil {
		return fmt.Errorf("write the status of KubeControllersConfiguration default: %w", err)
	}
	_, err = c.cfg.Dynamic.Resource(controllersResource).UpdateStatus(ctx, u, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // the next look finds it as it is then
	}
	if err != nil {
		return fmt.Errorf("write the status of KubeControllersConfiguration default: %w", err)
	}
	return nil
}
