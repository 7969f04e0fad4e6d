// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weir-net/weir/api/client/clientset"
	uicommand "github.com/weir-net/weir/cmd/weir/ui"
	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/fanout/names"
	fanoutreport "github.com/weir-net/weir/internal/fanout/report"
	flowscommand "github.com/weir-net/weir/internal/flows/command"
)

// readFanOut says how many replicas the fan-out has, where there are to be any.
func (r *report) readFanOut(ctx context.Context, c *clientset.Clients, now time.Time) error {
	dep, err := c.Kube.AppsV1().Deployments(deploy.Namespace).Get(ctx, names.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get Deployment %s: %w", names.Name, err)
	}
	if dep.Status.Replicas == 0 {
		return nil
	}
	r.components = append(r.components, fmt.Sprintf("%s %d/%d ready", names.Name, dep.Status.ReadyReplicas, dep.Status.Replicas))
	if dep.Status.ReadyReplicas == 0 {
		r.faults = append(r.faults, "Deployment "+names.Name+" has no replica that is ready: agents that have the cluster from it go on with what they have, and pods that start there wait; see `kubectl -n kube-system get pods -l k8s-app="+names.Name+" -o wide`")
	}
	return r.readReplicas(ctx, c, now)
}

// readStore says how the store of flow records is, where there is one, and the page in the browser.
func (r *report) readStore(ctx context.Context, source statuses, now time.Time) error {
	store, err := flowscommand.ReadStatus(ctx, source.clients.Kube, source.store, now)
	line, fault, errPage := uicommand.Status(ctx, source.clients.Kube)
	for _, of := range [][2]string{{store.Line, store.Fault}, {line, fault}} {
		if of[0] != "" {
			r.components = append(r.components, of[0])
		}
		if of[1] != "" {
			r.faults = append(r.faults, of[1])
		}
	}
	r.lost = append(r.lost, store.Lost...)
	return errors.Join(err, errPage)
}

// readReplicas reads what the replicas of the fan-out report of the agents that they serve.
func (r *report) readReplicas(ctx context.Context, c *clientset.Clients, now time.Time) error {
	reports, unreadable, err := fanoutreport.Read(ctx, c.Kube, deploy.Namespace)
	if apierrors.IsForbidden(err) {
		r.replicas = append(r.replicas, "what they report may not be read: it takes verb get on ConfigMap "+deploy.Namespace+"/"+fanoutreport.ConfigMap+" (ClusterRole weir-viewer)")
		return nil
	}
	if err != nil {
		return err
	}
	pods, err := c.Kube.CoreV1().Pods(deploy.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "k8s-app=" + names.Name})
	if err != nil {
		return fmt.Errorf("list the fan-outs: %w", err)
	}
	for i := range pods.Items {
		name := pods.Items[i].Name
		report, ok := reports[name]
		switch {
		case slices.Contains(unreadable, name):
			r.replicas = append(r.replicas, name+": its report cannot be read: it is of another version")
		case !ok:
			r.replicas = append(r.replicas, name+": it has not reported yet")
		default:
			line, faults := report.Line(name, now)
			r.replicas, r.faults = append(r.replicas, line), append(r.faults, faults...)
		}
	}
	return nil
}

// fed says which fan-out feeds the agents of which nodes.
func (r *report) fed() (lines []string) {
	const named = 3
	line := func(at string, nodes []string) {
		text := fmt.Sprintf("%s: %d: %s", at, len(nodes), strings.Join(nodes[:min(len(nodes), named)], ", "))
		if len(nodes) > named {
			text += ", …"
		}
		lines = append(lines, text)
	}
	for _, at := range slices.Sorted(maps.Keys(r.fanOuts)) {
		line(at, r.fanOuts[at])
	}
	if len(lines) > 0 && len(r.unfed) > 0 {
		line("from none", r.unfed)
	}
	return lines
}
