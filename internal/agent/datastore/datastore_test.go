// SPDX-License-Identifier: Apache-2.0

package datastore

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"

	"github.com/weir-net/weir/internal/apitest"
)

func TestLocked(t *testing.T) {
	t.Parallel()
	api := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{Resource: "ClusterInformationList"})
	f := New(api, slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	is := func(locked bool, when string) {
		t.Helper()
		apitest.Eventually(t, 20*time.Second, when, func() error {
			if f.Locked() != locked {
				return errors.New("locked is not as it should be")
			}
			return nil
		})
	}
	objects := api.Resource(Resource)
	put := func(spec map[string]any) {
		t.Helper()
		u := apitest.Object("projectcalico.org/v3", "ClusterInformation", "default", spec)
		_, err := objects.Update(t.Context(), u, metav1.UpdateOptions{})
		if err != nil {
			_, err = objects.Create(t.Context(), u, metav1.CreateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	is(false, "without the object")
	put(map[string]any{"datastoreReady": false})
	is(true, "locked")
	put(map[string]any{"datastoreReady": true})
	is(false, "unlocked")
	put(map[string]any{"datastoreReady": false})
	is(true, "locked again")
	put(map[string]any{"clusterType": "k8s"})
	is(false, "says nothing")
	put(map[string]any{"datastoreReady": false})
	is(true, "locked once more")
	if err := objects.Delete(t.Context(), "default", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	is(false, "deleted")
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
