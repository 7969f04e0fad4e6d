// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-net/weir/internal/sleep"
)

// The tests of the control plane write to the API server from the same process that sees the
// effect, so that one clock measures both times. A pod's service account has the rights for that,
// in its own namespace.

// api is the API server as a pod sees it.
type api struct {
	base  string
	token string
	http  *http.Client
}

const accountFolder = "/var/run/secrets/kubernetes.io/serviceaccount"

// inCluster finds the API server as every pod does.
func inCluster(folder string) (*api, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, errors.New("this is not a pod: KUBERNETES_SERVICE_HOST is not set")
	}
	token, err := os.ReadFile(filepath.Join(folder, "token"))
	if err != nil {
		return nil, fmt.Errorf("reading the token of the service account: %w", err)
	}
	ca, err := os.ReadFile(filepath.Join(folder, "ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("reading the API server's authority: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, errors.New("the API server's authority has no certificate")
	}
	return &api{base: "https://" + net.JoinHostPort(host, port), token: strings.TrimSpace(string(token)), http: &http.Client{
		Timeout: 30 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableCompression: true}}}, nil
}

// do sends JSON and returns when the API server has stored it.
func (a *api) do(ctx context.Context, method, path, kind string, body any) error {
	text, ok := body.([]byte)
	if !ok && body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return err
		}
	}
	q, err := http.NewRequestWithContext(ctx, method, a.base+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	q.Header.Set("Authorization", "Bearer "+a.token)
	q.Header.Set("Content-Type", kind)
	r, err := a.http.Do(q)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	defer r.Body.Close()
	said, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	if r.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %s: %.300s", method, path, r.Status, said)
	}
	return nil
}

const (
	mergePatch = "application/merge-patch+json"
	plainJSON  = "application/json"
)

// changeLimit is how long one change may take until its effect.
const changeLimit = 2 * time.Minute

// pause is between two changes: what puts changes together (kube-proxy for a second) must not see
// two as one.
var pause = 1500 * time.Millisecond

// control measures the time from a write to its effect, Count times.
func (c *Client) control(ctx context.Context, s Spec) (Result, error) {
	if s.Control == nil {
		return Result{}, fmt.Errorf("test %s: what to change is not said", s.Test)
	}
	a, err := inCluster(accountFolder)
	if err != nil {
		return Result{}, err
	}
	return c.changes(ctx, a, s)
}

func (c *Client) changes(ctx context.Context, a *api, s Spec) (Result, error) {
	change, end, err := c.changer(ctx, a, s)
	if err != nil {
		return Result{}, err
	}
	defer end()
	all, inner := newTimes(), newTimes()
	r, err := c.around(s, func(r *Result) error {
		for i := range s.Count {
			if i > 0 && s.Test != PodStart {
				if err := sleep.For(ctx, pause); err != nil {
					return err
				}
			}
			took, within, err := change(i)
			if err != nil {
				return fmt.Errorf("change %d: %w", i+1, err)
			}
			all.add(took)
			if within > 0 {
				inner.add(within)
			}
			r.Operations++
		}
		return nil
	})
	r.Latency, r.Inner = all.latency(), inner.latency()
	return r, err
}

// changer returns what makes the i-th change, waits for its effect, and says how long that took.
func (c *Client) changer(ctx context.Context, a *api, s Spec) (change func(i int) (took, within time.Duration, err error), end func(), err error) {
	end = func() {}
	switch s.Test {
	case Endpoint:
		names := make([]string, 0, len(s.Control.Backends))
		for n := range s.Control.Backends {
			names = append(names, n)
		}
		if slices.Sort(names); len(names) != 2 {
			return nil, nil, fmt.Errorf("%d backends: want two", len(names))
		}
		if err := c.moveTo(ctx, a, s, names[1], new(time.Duration)); err != nil { // where the first change goes away from
			return nil, nil, err
		}
		if err := sleep.For(ctx, pause); err != nil {
			return nil, nil, err
		}
		return func(i int) (took, within time.Duration, err error) {
			err = c.moveTo(ctx, a, s, names[i%2], &took)
			return took, 0, err
		}, end, nil
	case Policy:
		if err := c.policy(ctx, a, s, false, new(time.Duration)); err != nil {
			return nil, nil, err
		}
		if err := sleep.For(ctx, pause); err != nil {
			return nil, nil, err
		}
		return func(i int) (took, within time.Duration, err error) {
			if err := c.policy(ctx, a, s, true, &took); err != nil {
				return 0, 0, err
			}
			if err := sleep.For(ctx, pause); err != nil {
				return 0, 0, err
			}
			return took, 0, c.policy(ctx, a, s, false, new(time.Duration))
		}, end, nil
	case PodStart:
		l, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(s.UDP.Addr(), 0)))
		if err != nil {
			return nil, nil, fmt.Errorf("listening for pods: %w", err)
		}
		return func(i int) (took, within time.Duration, err error) { return c.startPod(ctx, a, s, l, i) }, func() { l.Close() }, nil
	}
	return nil, nil, fmt.Errorf("test %s changes nothing", s.Test)
}

// moveTo writes the address of a backend into the EndpointSlice, and connects until that backend
// answers.
func (c *Client) moveTo(ctx context.Context, a *api, s Spec, name string, took *time.Duration) error {
	patch := map[string]any{"endpoints": []any{map[string]any{"addresses": []string{s.Control.Backends[name].String()}, "conditions": map[string]bool{"ready": true}}}}
	began := time.Now()
	wrote := make(chan error, 1)
	go func() {
		wrote <- a.do(ctx, http.MethodPatch, "/apis/discovery.k8s.io/v1/namespaces/"+s.Control.Namespace+"/endpointslices/"+s.Control.Name, mergePatch, patch)
	}()
	through := s
	through.Direct, through.Patience = s.To, time.Second
	for {
		who, err := c.ask(through, "/who")
		if err == nil && string(who) == name {
			*took = time.Since(began)
			return <-wrote
		}
		select {
		case werr := <-wrote:
			if werr != nil {
				return werr
			}
			wrote <- nil
		case <-ctx.Done():
			return context.Cause(ctx)
		default:
		}
		if time.Since(began) > changeLimit {
			return fmt.Errorf("%v does not lead to %s %v after its EndpointSlice was changed (last: %q, %v)", s.To, name, changeLimit, who, err)
		}
	}
}

// policyPatience is how long a connection may take to be made while a policy's effect is looked
// for: so exact are the times.
const policyPatience = 8 * time.Millisecond

// policy makes the NetworkPolicy let everybody in, or nobody, and waits until a new connection is
// made, or none.
func (c *Client) policy(ctx context.Context, a *api, s Spec, open bool, took *time.Duration) error {
	rules := []any{}
	if open {
		rules = []any{map[string]any{}}
	}
	began := time.Now()
	wrote := make(chan error, 1)
	go func() {
		wrote <- a.do(ctx, http.MethodPatch, "/apis/networking.k8s.io/v1/namespaces/"+s.Control.Namespace+"/networkpolicies/"+s.Control.Name, mergePatch,
			map[string]any{"spec": map[string]any{"ingress": rules}})
	}()
	if !open { // closing is awaited, not timed: that needs time-outs, which are longer than the change
		if err := <-wrote; err != nil {
			return err
		}
		wrote <- nil
	}
	for denied := 0; denied < 20; {
		fd, err := connect(s.To, unix.SOCK_STREAM, policyPatience, congestion{})
		if err == nil {
			fd.close()
			if denied = 0; open {
				*took = time.Since(began)
				return <-wrote
			}
		} else if !open {
			denied++
		}
		select {
		case werr := <-wrote:
			if werr != nil {
				return werr
			}
			wrote <- nil
		case <-ctx.Done():
			return context.Cause(ctx)
		default:
		}
		if time.Since(began) > changeLimit {
			return fmt.Errorf("the policy is not in effect %v after it was changed (to let in: %v; last: %v)", changeLimit, open, err)
		}
	}
	return nil
}

// HelloEnv names where a pod that is started reports it, HelloTokenEnv with what.
const (
	HelloEnv      = "WEIR_BENCH_HELLO"
	HelloTokenEnv = "WEIR_BENCH_HELLO_TOKEN"
)

// hello is what a started pod sends.
type hello struct {
	Token string        `json:"token"`
	Since time.Duration `json:"since"` // its program's start
}

// startPod makes a pod that says hello, waits for that, and removes it.
func (c *Client) startPod(ctx context.Context, a *api, s Spec, l *net.UDPConn, i int) (took, within time.Duration, err error) {
	var pod map[string]any
	if err := json.Unmarshal(s.Control.Pod, &pod); err != nil {
		return 0, 0, fmt.Errorf("the pod to start: %w", err)
	}
	name := fmt.Sprintf("%s%d-%d", s.Control.Name, time.Now().UnixMilli(), i)
	pod["metadata"].(map[string]any)["name"] = name
	at := l.LocalAddr().(*net.UDPAddr).AddrPort()
	word := rand.Text()
	for _, container := range pod["spec"].(map[string]any)["containers"].([]any) {
		container.(map[string]any)["env"] = []any{map[string]any{"name": HelloEnv, "value": netip.AddrPortFrom(at.Addr().Unmap(), at.Port()).String()},
			map[string]any{"name": HelloTokenEnv, "value": word}}
	}
	base := "/api/v1/namespaces/" + s.Control.Namespace + "/pods"
	began := time.Now()
	if err := a.do(ctx, http.MethodPost, base, plainJSON, pod); err != nil {
		return 0, 0, err
	}
	defer func() {
		err = errors.Join(err, a.do(context.WithoutCancel(ctx), http.MethodDelete, base+"/"+name, plainJSON, map[string]any{"gracePeriodSeconds": 0}))
	}()
	if err := l.SetReadDeadline(began.Add(changeLimit)); err != nil {
		return 0, 0, err
	}
	defer context.AfterFunc(ctx, func() { l.SetReadDeadline(time.Unix(0, 0)) })()
	buf := make([]byte, 1500)
	for {
		n, from, err := l.ReadFromUDPAddrPort(buf)
		if err != nil {
			return 0, 0, fmt.Errorf("waiting for the first packet of the pod %s: %w", name, err)
		}
		var h hello
		if json.Unmarshal(buf[:n], &h) != nil || h.Token != word {
			continue
		}
		took = time.Since(began)
		_, err = l.WriteToUDPAddrPort([]byte("heard"), from)
		return took, h.Since, err
	}
}

// Hello says hello until it is heard: what a started pod does.
func Hello(ctx context.Context, to, word string) error {
	began := time.Now()
	d := net.Dialer{}
	for {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("nobody answers at %s: %w", to, err)
		}
		conn, err := d.DialContext(ctx, "udp", to)
		if err != nil {
			time.Sleep(time.Millisecond) // no route yet
			continue
		}
		text, err := json.Marshal(hello{Token: word, Since: time.Since(began)})
		if err != nil {
			return err
		}
		if err := conn.SetDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
			return err
		}
		_, err = conn.Write(text)
		if err == nil {
			_, err = conn.Read(make([]byte, 64))
		}
		conn.Close()
		if err == nil {
			return nil
		}
	}
}
