// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/weir-net/weir/internal/flows/ask"
	"github.com/weir-net/weir/internal/flowstore/names"
)

// Status says how the store of flow records is, and what is wrong with it; both are empty where
// there is none. A nil store is not asked how it is.
func Status(ctx context.Context, kube kubernetes.Interface, store *ask.Store) (line, fault string, err error) {
	dep, err := kube.AppsV1().Deployments(names.Namespace).Get(ctx, names.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return "", "", nil
	}
	if err != nil {
		return "", "", fmt.Errorf("get Deployment %s: %w", names.Name, err)
	}
	line = fmt.Sprintf("%s %d/1 ready", names.Name, dep.Status.ReadyReplicas)
	if dep.Status.ReadyReplicas == 0 {
		return line, "Deployment " + names.Name + " is not ready: flow records that agents overwrite meanwhile are lost; see `kubectl -n " + names.Namespace + " logs deploy/" + names.Name + "`", nil
	}
	if store != nil {
		line += ", " + store.Line(ctx)
	}
	return line, "", nil
}
