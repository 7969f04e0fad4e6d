// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/vishvananda/netns"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/weir-net/weir/internal/bench/store"
	"github.com/weir-net/weir/internal/kernel"
)

// REST returns how to speak to the API server of a lab as its administrator: by connections that
// are opened inside of the lab, where no packet finds a path out of the machine. The client does
// not hold its requests back.
func REST(name string) (*rest.Config, error) {
	raw, err := os.ReadFile(filepath.Join("/run/weir-lab", name, "admin.conf"))
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig of lab %s: %w", name, err)
	}
	c, err := clientcmd.RESTConfigFromKubeConfig(raw)
	if err != nil {
		return nil, fmt.Errorf("the kubeconfig of lab %s: %w", name, err)
	}
	c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		return dialFrom(ctx, filepath.Join("/run/netns", name+"-client1"), network, addr)
	}
	c.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
	c.QPS = -1
	return c, nil
}

// Store returns how to write into the etcd of a lab's API server.
func Store(name string) *store.Store {
	return &store.Store{URL: "http://127.0.0.1:2379", HTTP: &http.Client{Timeout: time.Minute, Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return dialFrom(ctx, filepath.Join("/run/netns", name+"-cp"), network, addr)
		}}}}
}

// dialFrom opens a socket in a network namespace. Addresses in a lab's kubeconfig are numbers, so
// the one socket is opened on the thread that is there.
func dialFrom(ctx context.Context, path, network, addr string) (conn net.Conn, err error) {
	there, err := netns.GetFromPath(path)
	if err != nil {
		return nil, err
	}
	defer there.Close()
	err = kernel.InNetns(int(there), func() error {
		conn, err = (&net.Dialer{Timeout: 3 * time.Second}).DialContext(ctx, network, addr)
		return err
	})
	return conn, err
}
