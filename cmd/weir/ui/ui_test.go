// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flows/ask"
	"github.com/weir-net/weir/internal/hostile"
	page "github.com/weir-net/weir/internal/ui"
	why "github.com/weir-net/weir/internal/why/ask"
)

// nobody has one node, and nothing else.
type nobody struct{}

func (nobody) Records(context.Context, flows.Filter, int) (*ask.Found, error) {
	return &ask.Found{}, nil
}
func (nobody) Policies(context.Context) (*page.Policies, error) { return &page.Policies{}, nil }
func (nobody) Why(context.Context, page.Question) (*why.Story, error) {
	return &why.Story{}, nil
}
func (nobody) Cluster(context.Context) (*page.Cluster, error) {
	return &page.Cluster{Nodes: []page.Node{{Name: "n1"}}}, nil
}

func TestLoopback(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"127.0.0.1:0": "127.0.0.1:0", "localhost:8080": "127.0.0.1:8080", "[::1]:80": "[::1]:80", "127.9.9.9:1": "127.9.9.9:1"} {
		if at, err := loopback(text); err != nil || at.String() != want {
			t.Errorf("%s: %v %v", text, at, err)
		}
	}
	for _, text := range []string{"", "8080", "0.0.0.0:8080", ":8080", "[::]:80", "192.0.2.1:80", "example.com:80", "127.0.0.1:http"} {
		if at, err := loopback(text); err == nil || !strings.Contains(err.Error(), "--listen") {
			t.Errorf("%q: %v %v", text, at, err)
		}
	}
}

// The address that is printed leads to the page and has the token; each run has another one, and
// the end of the command ends the server.
func TestServe(t *testing.T) {
	t.Parallel()
	tokens := map[string]bool{}
	for range 2 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		said, out := io.Pipe()
		ended := make(chan error, 1)
		go func() { ended <- serve(ctx, l, nobody{}, out, false) }()
		line, err := bufio.NewReader(said).ReadString('\n')
		go io.Copy(io.Discard, said)
		m := regexp.MustCompile(`http://([0-9.:]+)/#token=(\w+)\n$`).FindStringSubmatch(line)
		if err != nil || m == nil || m[1] != l.Addr().String() || len(m[2]) < 20 || tokens[m[2]] {
			t.Fatalf("%q %v", line, err)
		}
		tokens[m[2]] = true
		get := func(path, token string) (int, string) {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+m[1]+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			if token != "" {
				r.Header.Set("Authorization", "Bearer "+token)
			}
			c := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
			resp, err := c.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			text, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			return resp.StatusCode, string(text)
		}
		if code, text := get("/flows", ""); code != http.StatusOK || !strings.Contains(text, "/page.js") || strings.Contains(text, m[2]) {
			t.Errorf("the page: %d %s", code, text)
		}
		if code, text := get("/api/cluster", m[2]); code != http.StatusOK || !strings.Contains(text, `"n1"`) {
			t.Errorf("how nodes are: %d %s", code, text)
		}
		if code, _ := get("/api/cluster", ""); code != http.StatusUnauthorized {
			t.Errorf("without the token: %d", code)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if c, err := net.Dial("tcp", m[1]); err == nil {
			c.Close()
			t.Error("it is still served")
		}
	}
}

// TestHostileArgumentsOfBrowser: who lists the processes of the machine does not see the token. The
// browser is told a file of the user's.
func TestHostileArgumentsOfBrowser(t *testing.T) {
	hostile.Record(t, "another user of an operator's machine reads the page's token among the arguments of programs", hostile.Browser, hostile.ControlPlane, hostile.Both)
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("TMPDIR", dir)
	told := filepath.Join(dir, "told")
	if err := os.WriteFile(filepath.Join(dir, "xdg-open"), []byte("#!/bin/sh\necho \"$*\" >"+told+".part\nmv "+told+".part "+told+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	closed, err := openBrowser("http://127.0.0.1:1/#token=secret&x")
	if err != nil {
		t.Fatal(err)
	}
	var args []byte
	for end := time.Now().Add(time.Minute); len(args) == 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		args, _ = os.ReadFile(told) // not there yet
	}
	file := string(bytes.TrimSpace(args))
	if file == "" || strings.Contains(file, "secret") {
		t.Fatalf("the browser is told %q", file)
	}
	text, err := os.ReadFile(file)
	info, err2 := os.Stat(filepath.Dir(file))
	if err != nil || err2 != nil || !strings.Contains(string(text), "url=http://127.0.0.1:1/#token=secret&amp;x\"") || info.Mode().Perm() != 0o700 {
		t.Errorf("%v %v: %s", err, err2, text)
	}
	closed()
	if _, err := os.Stat(filepath.Dir(file)); !os.IsNotExist(err) {
		t.Errorf("it is left: %v", err)
	}
}

// The page in the browser has a line where it is installed, and is a fault where nobody reaches it.
func TestStatus(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ready int32
		there bool
		line  string
		fault bool
	}{"none": {}, "ready": {ready: 1, there: true, line: "weir-ui 1/1 ready"}, "not ready": {there: true, line: "weir-ui 0/1 ready", fault: true}} {
		kube := fake.NewClientset()
		if c.there {
			d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: deployment}, Status: appsv1.DeploymentStatus{ReadyReplicas: c.ready}}
			if _, err := kube.AppsV1().Deployments("kube-system").Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		line, fault, err := Status(t.Context(), kube)
		if err != nil || line != c.line || (fault != "") != c.fault {
			t.Errorf("%s: %q, %q, %v", name, line, fault, err)
		}
	}
}
