// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weir-net/weir/internal/hubble/servername"
	"github.com/weir-net/weir/internal/peerauth"
	"github.com/weir-net/weir/internal/relay/live"
)

var apiServiceResource = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}

// uiServer is the Service of the page in the browser, and uiSecret has its certificate, where they
// are installed.
const (
	uiServer = "weir-ui"
	uiSecret = "weir-ui-tls"
)

// keepAuthorities looks after the certificate authorities for connections between Weir's programs,
// and publishes to the API server which certificates the controller has. Where somebody removed the
// APIService, it stays so.
func (c *Controller) keepAuthorities(ctx context.Context) error {
	bundle, err := c.peers.Ensure(ctx)
	if err != nil {
		return err
	}
	if err := c.peers.Certify(ctx, uiSecret, uiServer+"."+c.cfg.Namespace+".svc"); err != nil {
		return err
	}
	if err := c.keepHubble(ctx); err != nil {
		return err
	}
	if err := c.publishToWebhook(ctx, bundle); err != nil {
		return err
	}
	services := c.cfg.Dynamic.Resource(apiServiceResource)
	have, err := services.Get(ctx, live.APIService, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get APIService %s: %w", live.APIService, err)
	}
	text := base64.StdEncoding.EncodeToString(bundle)
	if now, _, _ := unstructured.NestedString(have.Object, "spec", "caBundle"); now == text {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"caBundle": text}})
	if err != nil {
		return fmt.Errorf("encode the authorities: %w", err)
	}
	if _, err := services.Patch(ctx, live.APIService, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("write the authorities into APIService %s: %w", live.APIService, err)
	}
	return nil
}

// The Secret with the certificate of a client of Hubble's API at agents that reads the records of
// all. Agents get theirs by package nodecert.
const (
	hubbleReaderSecret = "weir-hubble-client"
	hubbleReader       = "hubble-relay"
)

// keepHubble looks after the authority for Hubble's API at agents and the certificate of its
// clients, where they are installed.
func (c *Controller) keepHubble(ctx context.Context) error {
	k := &peerauth.Keeper{Kube: c.cfg.Kube, Namespace: c.cfg.Namespace, Object: peerauth.HubbleName, Domain: servername.Domain, Clients: true, Now: c.now}
	if installed, err := k.Installed(ctx); err != nil || !installed {
		return err
	}
	if _, err := k.Ensure(ctx); err != nil {
		return err
	}
	return k.CertifyReader(ctx, hubbleReaderSecret, hubbleReader)
}
