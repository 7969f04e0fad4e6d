// SPDX-License-Identifier: Apache-2.0

package peerauth

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Objects of the authority. Both are installed empty, so that the controller needs no right to
// create any.
const (
	// ObjectName is the name of the Secret with the authorities and their keys, and of the
	// ConfigMap with the certificates.
	ObjectName = "weir-peer-ca"
	// SecretKey is where the Secret has them.
	SecretKey = "authorities.pem"
	// BundleKey is where the ConfigMap has the certificates that agents trust.
	BundleKey = "ca.crt"
	// HubbleName is the name of the same two objects of the authority for Hubble's API at agents,
	// where it is installed.
	HubbleName = "weir-hubble-ca"
)

// Keeper makes, renews and publishes the authorities. One instance of the controller does so at a
// time: the leader.
type Keeper struct {
	Kube      kubernetes.Interface
	Namespace string
	Object    string // of the Secret and the ConfigMap; empty = ObjectName
	Domain    string // the authorities sign for servers with names below it alone
	Clients   bool   // they sign for clients, too
	Now       func() time.Time
}

func (k *Keeper) object() string {
	if k.Object == "" {
		return ObjectName
	}
	return k.Object
}

// Installed reports whether there is a Secret for the authorities that the controller may read.
func (k *Keeper) Installed(ctx context.Context) (bool, error) {
	_, err := k.Kube.CoreV1().Secrets(k.Namespace).Get(ctx, k.object(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("get Secret %s/%s: %w", k.Namespace, k.object(), err)
	}
	return true, nil
}

// Ensure looks after the authorities once, and returns the certificates that are published. A
// Secret that cannot be read is left as it is: it may be somebody's mistake, and a new authority is
// trusted by nobody yet.
func (k *Keeper) Ensure(ctx context.Context) ([]byte, error) {
	secret, err := k.Kube.CoreV1().Secrets(k.Namespace).Get(ctx, k.object(), metav1.GetOptions{})
	if err != nil {
		return nil, missing(err, "Secret", k.Namespace, k.object())
	}
	have, err := decode(secret.Data[SecretKey])
	if err != nil {
		return nil, fmt.Errorf("secret %s/%s, %s: %w; remove this key, and a new authority is made", k.Namespace, k.object(), SecretKey, err)
	}
	want, err := have.renewed(k.Now(), k.Domain, k.Clients)
	if err != nil {
		return nil, err
	}
	text, err := want.encode()
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(text, secret.Data[SecretKey]) {
		// Of two instances that take themselves for the leader one gets a conflict.
		secret.Data = map[string][]byte{SecretKey: text}
		if _, err := k.Kube.CoreV1().Secrets(k.Namespace).Update(ctx, secret, metav1.UpdateOptions{}); err != nil {
			return nil, fmt.Errorf("update Secret %s/%s: %w", k.Namespace, k.object(), err)
		}
	}
	bundle := want.bundle()
	return bundle, k.publish(ctx, bundle)
}

// publish writes the certificates where agents read them.
func (k *Keeper) publish(ctx context.Context, bundle []byte) error {
	maps := k.Kube.CoreV1().ConfigMaps(k.Namespace)
	have, err := maps.Get(ctx, k.object(), metav1.GetOptions{})
	if err != nil {
		return missing(err, "ConfigMap", k.Namespace, k.object())
	}
	if have.Data[BundleKey] == string(bundle) {
		return nil
	}
	have.Data = map[string]string{BundleKey: string(bundle)}
	if _, err := maps.Update(ctx, have, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update ConfigMap %s/%s: %w", k.Namespace, k.object(), err)
	}
	return nil
}

func missing(err error, kind, namespace, name string) error {
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("there is no %s %s/%s; run `weir install`", kind, namespace, name)
	}
	return fmt.Errorf("get %s %s/%s: %w", kind, namespace, name, err)
}

// read returns the authorities of a Secret.
func read(ctx context.Context, kube kubernetes.Interface, namespace, name string) (authorities, error) {
	var secret *corev1.Secret
	secret, err := kube.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, missing(err, "Secret", namespace, name)
	}
	as, err := decode(secret.Data[SecretKey])
	if err == nil && len(as) == 0 {
		err = errors.New("no authority was made yet: the leader does so")
	}
	if err != nil {
		return nil, fmt.Errorf("secret %s/%s: %w", namespace, name, err)
	}
	return as, nil
}
