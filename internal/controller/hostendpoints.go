package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/weir-net/weir/internal/model"
)

var (
	hostEndpointResource = v3.SchemeGroupVersion.WithResource("hostendpoints")
	controllersResource  = v3.SchemeGroupVersion.WithResource("kubecontrollersconfigurations")
)

// createdBy is the label that tells automatic host endpoints from those that somebody made.
const createdBy, creator = "projectcalico.org/created-by", "calico-kube-controllers"

// hostEndpointSuffix follows the node's name in that of its automatic host endpoint.
const hostEndpointSuffix = "-auto-hep"

// hostEndpoints keeps one host endpoint for each node while KubeControllersConfiguration "default" asks for them
// (controllers.node.hostEndpoint.autoCreate Enabled, createDefaultHostEndpoint not Disabled), and none that it made otherwise.
func (c *Controller) hostEndpoints(ctx context.Context) error {
	api := c.cfg.Dynamic.Resource(hostEndpointResource)
	list, err := api.List(ctx, metav1.ListOptions{LabelSelector: createdBy + "=" + creator})
	if apierrors.IsNotFound(err) {
		return nil // the definitions are older than this program
	}
	if err != nil {
		return fmt.Errorf("list HostEndpoints: %w", err)
	}
	wanted, err := c.wantedHostEndpoints(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for i := range list.Items {
		have := &list.Items[i]
		want := wanted[have.GetName()]
		delete(wanted, have.GetName())
		switch {
		case want == nil:
			err = api.Delete(ctx, have.GetName(), metav1.DeleteOptions{})
			if err == nil {
				c.log.Info("removed an automatic host endpoint", "name", have.GetName())
			}
		case !reflect.DeepEqual(have.Object["spec"], want.Object["spec"]) || !maps.Equal(have.GetLabels(), want.GetLabels()):
			want.SetResourceVersion(have.GetResourceVersion())
			_, err = api.Update(ctx, want, metav1.UpdateOptions{})
		default:
			err = nil
		}
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("HostEndpoint %s: %w", have.GetName(), err))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		_, err := api.Create(ctx, wanted[name], metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			c.once("HostEndpoint "+name, "a HostEndpoint has the name of an automatic one and not its label: it is left as it is", "name", name, "label", createdBy+"="+creator)
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("create HostEndpoint %s: %w", name, err))
			continue
		}
		c.log.Info("made an automatic host endpoint", "name", name)
	}
	return errors.Join(errs...)
}

// once logs a warning the first time that it is about this.
func (c *Controller) once(about, msg string, args ...any) {
	if !c.warned[about] {
		c.warned[about] = true
		c.log.Warn(msg, args...)
	}
}

// wantedHostEndpoints returns the automatic host endpoints by name.
func (c *Controller) wantedHostEndpoints(ctx context.Context) (map[string]*unstructured.Unstructured, error) {
	u, err := c.cfg.Dynamic.Resource(controllersResource).Get(ctx, "default", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get KubeControllersConfiguration default: %w", err)
	}
	var conf v3.KubeControllersConfiguration
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &conf); err != nil {
		return nil, fmt.Errorf("read KubeControllersConfiguration default: %w", err)
	}
	node := conf.Spec.Controllers.Node
	if node == nil || node.HostEndpoint == nil || node.HostEndpoint.AutoCreate != "Enabled" {
		return nil, nil
	}
	if len(node.HostEndpoint.Templates) > 0 {
		c.once("templates", "KubeControllersConfiguration default: templates of host endpoints are not in force: none is made from them",
			"field", "spec.controllers.node.hostEndpoint.templates")
	}
	if node.HostEndpoint.CreateDefaultHostEndpoint == v3.DefaultHostEndpointsDisabled {
		return nil, nil
	}
	nodes, err := c.cfg.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	out := map[string]*unstructured.Unstructured{}
	for i := range nodes.Items {
		h := autoHostEndpoint(&nodes.Items[i])
		out[h.GetName()] = h
	}
	return out, nil
}

// autoHostEndpoint is the host endpoint of all interfaces of a node, which allows everything until policy selects it.
func autoHostEndpoint(n *corev1.Node) *unstructured.Unstructured {
	spec := map[string]any{"node": n.Name, "interfaceName": model.AllInterfaces, "profiles": []any{model.ProfileDefaultAllow}}
	var ips []any
	for _, a := range n.Status.Addresses {
		if (a.Type == corev1.NodeInternalIP || a.Type == corev1.NodeExternalIP) && !slices.Contains(ips, any(a.Address)) {
			ips = append(ips, a.Address)
		}
	}
	if len(ips) > 0 {
		spec["expectedIPs"] = ips
	}
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": v3.GroupVersionCurrent, "kind": v3.KindHostEndpoint, "spec": spec}}
	u.SetName(n.Name + hostEndpointSuffix)
	labels := maps.Clone(n.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[createdBy] = creator
	u.SetLabels(labels)
	return u
}
