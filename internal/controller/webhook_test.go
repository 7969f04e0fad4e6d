// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-net/weir/internal/admission"
	"github.com/weir-net/weir/internal/peerauth"
)

// The webhook's configuration has the authorities that are published, is written only where it has
// others, and everything else in it is left alone.
func TestAuthoritiesOfWebhook(t *testing.T) {
	name := func(n string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: n} }
	f := newFixture(t, &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: name(admission.Configuration), Webhooks: []admissionregistrationv1.MutatingWebhook{
		{Name: "others"}, {Name: admission.Webhook, ClientConfig: admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Name: "weir-controller"}}}}})
	api := f.kube.AdmissionregistrationV1().MutatingWebhookConfigurations()
	writes := func() (n int) {
		for _, a := range f.kube.Actions() {
			if a.GetVerb() == "patch" && a.GetResource().Resource == "mutatingwebhookconfigurations" {
				n++
			}
		}
		return n
	}
	if err := f.keepAuthorities(t.Context()); err != nil || writes() != 0 {
		t.Fatalf("without the option: %v, %d writes", err, writes())
	}
	f.cfg.PolicyDefaults = true
	for range 2 {
		if err := f.keepAuthorities(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	have, err := api.Get(t.Context(), admission.Configuration, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var published *corev1.ConfigMap
	if published, err = f.kube.CoreV1().ConfigMaps("kube-system").Get(t.Context(), peerauth.ObjectName, metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if w := have.Webhooks; len(w) != 2 || w[0].ClientConfig.CABundle != nil || string(w[1].ClientConfig.CABundle) != published.Data[peerauth.BundleKey] || w[1].ClientConfig.Service == nil {
		t.Errorf("the webhooks are %+v", w)
	}
	if n := writes(); n != 1 {
		t.Errorf("%d writes", n)
	}
	if err := api.Delete(t.Context(), admission.Configuration, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := f.keepAuthorities(t.Context()); err != nil {
		t.Errorf("where somebody removed it: %v", err)
	}
}
