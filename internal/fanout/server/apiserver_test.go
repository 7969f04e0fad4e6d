// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apiclient "github.com/weir-net/weir/api/client"
	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/apitest"
	"github.com/weir-net/weir/internal/fanout/names"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/peerauth"
	"github.com/weir-net/weir/internal/watch"
)

// TestAPIServerAway holds that a fan-out goes on when a real API server is gone: agents that are
// connected stay and know since when, those that connect get what there is, with real tokens, and a
// pod that is known gets what its CNI ADD needs.
func TestAPIServerAway(t *testing.T) {
	if !apitest.Isolated(t) {
		return
	}
	api := apitest.Start(t)
	ctx := t.Context()
	objects, err := deploy.Objects(deploy.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range objects {
		switch u.GetKind() {
		case "CustomResourceDefinition", "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding":
			api.Create(u)
		}
	}
	kube := api.Clients.Kube
	pod := func(namespace, name, account, node string) *corev1.Pod {
		t.Helper()
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{"cni.projectcalico.org/ipv4pools": `["a"]`, "other": "x"}},
			Spec: corev1.PodSpec{NodeName: node, ServiceAccountName: account, Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
		p, err := kube.CoreV1().Pods(namespace).Create(ctx, p, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	if _, err := kube.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	tokens := map[string]string{}
	for _, node := range []string{"n1", "n2"} {
		if _, err := kube.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		agent := pod(names.Namespace, "weir-node-"+node, "weir-node", node)
		life := int64(3600)
		got, err := kube.CoreV1().ServiceAccounts(names.Namespace).CreateToken(ctx, "weir-node", &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			Audiences: []string{names.ServerName}, ExpirationSeconds: &life, BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: agent.Name, UID: agent.UID}}},
			metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		tokens[node] = got.Status.Token
	}
	started := pod("default", "web", "default", "n2")

	log := slog.New(slog.DiscardHandler)
	readers, err := apiclient.New(api.Config, "test")
	if err != nil {
		t.Fatal(err)
	}
	watcher, err := watch.New(watch.Config{Core: readers.Core, Dynamic: readers.Dynamic, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	// With the rights that it is installed with.
	own := api.As("system:serviceaccount:"+names.Namespace+":"+names.Name, "").Kube
	reviewer := peerauth.NewReviewer(own, peerauth.AgentUser(names.Namespace), names.ServerName)
	read := make(chan struct{})
	whole := sync.OnceFunc(func() { close(read) })
	p := newPlace(t, func(cfg *Config) {
		cfg.Reviewer, cfg.Status, cfg.Pod = reviewer, watcher.Status, watcher.KnownPod
	})
	p.lookupAfter = time.Hour
	reviewer.Offline = peerauth.NewOffline(own, p.server.Lives, log)
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- watcher.Run(ctx, func(ctx context.Context, b *watch.Batch) {
			p.server.Update(ctx, b)
			if b.Full {
				whole()
			}
		})
	}()
	defer func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}()
	<-read
	if err := reviewer.Offline.Read(ctx); err != nil {
		t.Fatal(err)
	}
	first := newAgent(t, "n1", tokens["n1"], p)
	eventually(t, "the snapshot", func() bool { return first.Status().Synced && first.Status().Connected })
	stopped := time.Now()
	api.Stop()
	stale := func(a *agent) error {
		switch st := a.Status(); {
		case !st.Synced || st.FanOut == "":
			return fmt.Errorf("not fed: %+v", st)
		case st.Connected || !strings.Contains(st.Err, "not in touch with the API server") || time.Since(st.Since) > time.Hour:
			return fmt.Errorf("%+v", st)
		case st.AsOf.Before(stopped.Add(-time.Minute)) || time.Since(st.AsOf) < time.Second:
			return fmt.Errorf("as of %s, stopped at %s", st.AsOf, stopped)
		}
		return nil
	}
	apitest.Eventually(t, time.Minute, "that the agent knows of it", func() error { return stale(first) })
	second := newAgent(t, "n2", tokens["n2"], p)
	second.away(errors.New("connection refused"))
	apitest.Eventually(t, time.Minute, "that another agent is fed", func() error { return stale(second) })
	name := model.Name{Namespace: "default", Name: "web"}
	got, err := second.PodForAdd(ctx, name, string(started.UID))
	if err != nil {
		t.Fatal(err)
	}
	if got.Pod.Node != "n2" || len(got.Annotations) != 1 || got.Namespace.Labels["kubernetes.io/metadata.name"] != "default" {
		t.Errorf("the pod is %+v", got)
	}
	api.StartAPIServer()
	apitest.Eventually(t, 2*time.Minute, "that the API server is back", func() error {
		if st := first.Status(); !st.Connected {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	first.mu.Lock()
	defer first.mu.Unlock()
	if first.fulls != 1 || first.Status().FanOut == "" {
		t.Errorf("the first agent was fed %d times", first.fulls)
	}
}
