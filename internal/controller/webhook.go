// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weir-net/weir/internal/admission"
)

// publishToWebhook writes into the configuration of the webhook which certificates the controller
// has. Where somebody removed it, it stays so.
func (c *Controller) publishToWebhook(ctx context.Context, bundle []byte) error {
	if !c.cfg.PolicyDefaults {
		return nil
	}
	api := c.cfg.Kube.AdmissionregistrationV1().MutatingWebhookConfigurations()
	have, err := api.Get(ctx, admission.Configuration, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get MutatingWebhookConfiguration %s: %w", admission.Configuration, err)
	}
	i := slices.IndexFunc(have.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool { return w.Name == admission.Webhook })
	if i < 0 || bytes.Equal(have.Webhooks[i].ClientConfig.CABundle, bundle) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"webhooks": []any{map[string]any{"name": admission.Webhook, "clientConfig": map[string]any{"caBundle": bundle}}}})
	if err != nil {
		return fmt.Errorf("encode the authorities: %w", err)
	}
	if _, err := api.Patch(ctx, admission.Configuration, types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("write the authorities into MutatingWebhookConfiguration %s: %w", admission.Configuration, err)
	}
	return nil
}
