// SPDX-License-Identifier: Apache-2.0

// Package ui is the command `weir ui`: it serves the page in the browser on the loopback of the
// machine on which it runs, with the rights of the kubeconfig, until it is ended. Who asks shows a
// token that only this run knows.
package ui

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"html"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/weir-net/weir/api/client/clientset"
	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/agentapi"
	"github.com/weir-net/weir/internal/httplimit"
	page "github.com/weir-net/weir/internal/ui"
	"github.com/weir-net/weir/internal/ui/source"
)

// Program is what the command needs of the one that it is part of.
type Program struct {
	// Reach connects with the kubeconfig.
	Reach func() (*clientset.Clients, *agentapi.Client, error)
	// Status says how the cluster is, as `weir status` does.
	Status func(context.Context, *clientset.Clients) (*page.Cluster, error)
}

const (
	// answerWithin is how long the longest answers may take: of `weir why`, of 100,000 records.
	answerWithin = 2 * time.Minute
	endWithin    = 2 * time.Second
)

// deployment is the Deployment of the page that the cluster serves.
const deployment = "weir-ui"

// Status says whether the cluster serves the page, where it is to, and what is wrong with it.
func Status(ctx context.Context, kube kubernetes.Interface) (line, fault string, err error) {
	dep, err := kube.AppsV1().Deployments(deploy.Namespace).Get(ctx, deployment, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return "", "", nil
	}
	if err != nil {
		return "", "", fmt.Errorf("get Deployment %s: %w", deployment, err)
	}
	want := int32(1)
	if dep.Spec.Replicas != nil {
		want = *dep.Spec.Replicas
	}
	if want > 0 && dep.Status.ReadyReplicas == 0 {
		fault = "Deployment " + deployment + " is not ready: nobody reaches the page in the browser, nor the APIs of Hubble and Goldmane there; see `kubectl -n " + deploy.Namespace + " logs deploy/" + deployment + "`"
	}
	return fmt.Sprintf("%s %d/%d ready", deployment, dep.Status.ReadyReplicas, want), fault, nil
}

// New returns the command.
func New(p Program) *cobra.Command {
	var listen string
	var open bool
	cmd := &cobra.Command{Use: "ui", Short: "Serve a page for the browser: who talks to whom, which rule decided, how nodes are", Args: cobra.NoArgs,
		Long: `Serve a page for the browser on the loopback of this machine, until Ctrl-C: a map of who talks to whom, the records of flows, policies with
what each of their rules decided, how nodes are, and why a connection is allowed or denied. It asks the API server and the agents as weir status,
weir flows and weir why do, with the rights of the kubeconfig: ClusterRole weir-viewer has what is needed, but for listing policies.
Records of flows are there while FelixConfiguration spec.flowLogsLocalReporter is Enabled.
The address that is printed has a token that only this run takes; who has it sees what you may see. On another machine, forward the port by ssh -L.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			at, err := loopback(listen)
			if err != nil {
				return err
			}
			clients, agents, err := p.Reach()
			if err != nil {
				return err
			}
			of := source.New(clients, agents, func(ctx context.Context) (*page.Cluster, error) { return p.Status(ctx, clients) })
			l, err := net.Listen("tcp", at.String())
			if err != nil {
				return fmt.Errorf("listen for the browser: %w", err)
			}
			return serve(cmd.Context(), l, of, cmd.OutOrStdout(), open)
		}}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "loopback `address` and port at which the page is; port 0 takes a free one")
	cmd.AddCommand(newServe(p))
	cmd.Flags().BoolVar(&open, "open", false, "open the page in the browser of this machine (xdg-open)")
	return cmd
}

// loopback reads an address, which has to be of the loopback: nothing encrypts what the page is
// told.
func loopback(text string) (netip.AddrPort, error) {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("--listen %q: %w", text, err)
	}
	if host == "localhost" {
		host = "127.0.0.1"
	}
	at, err := netip.ParseAddrPort(net.JoinHostPort(host, port))
	if err != nil {
		return at, fmt.Errorf("--listen %q: an address and a port, such as 127.0.0.1:8080", text)
	}
	if !at.Addr().IsLoopback() {
		return at, fmt.Errorf("--listen %q is not of the loopback, and nothing would encrypt what the page is told: forward a port to it (ssh -L)", text)
	}
	return at, nil
}

// serve serves the page at a listener until ctx ends.
func serve(ctx context.Context, l net.Listener, of page.Source, out io.Writer, open bool) error {
	token := rand.Text()
	at := l.Addr().String()
	_, port, err := net.SplitHostPort(at)
	if err != nil {
		return err
	}
	server := httplimit.NewServer(page.New(page.Config{
		Origins: []string{"http://" + at, "http://localhost:" + port},
		Access:  page.Token(token, of),
		Log:     slog.New(slog.DiscardHandler),
	}))
	server.WriteTimeout = answerWithin
	server.BaseContext = func(net.Listener) context.Context { return ctx }
	address := "http://" + at + "/#token=" + token
	fmt.Fprintf(out, "The page is at %s\nIt ends with Ctrl-C.\n", address)
	if open {
		closed, err := openBrowser(address)
		if err != nil {
			fmt.Fprintf(out, "It cannot be opened here: %v\n", err)
		} else {
			defer closed()
		}
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		ending, cancel := context.WithTimeout(context.Background(), endWithin)
		defer cancel()
		_ = server.Shutdown(ending) // what is left is closed with the process
	}()
	// All callers have the address 127.0.0.1, so one may have all connections.
	err = server.Serve(httplimit.NewListener(l, httplimit.DefaultTotal, httplimit.DefaultTotal))
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the page: %w", err)
	}
	<-stopped
	return nil
}

// openBrowser opens an address by a file of the user's, which leads there: arguments of programs
// are seen by all users of a machine, and the address has the token. closed removes the file.
func openBrowser(address string) (closed func(), err error) {
	program, err := exec.LookPath("xdg-open")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "weir-ui-") // the user's alone
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "page.html")
	text := `<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url=` + html.EscapeString(address) + `"><title>Weir</title>`
	if err = os.WriteFile(file, []byte(text), 0o600); err == nil {
		opener := exec.Command(program, file) // it may become the browser, which goes on after us
		if err = opener.Start(); err == nil {
			go func() { _ = opener.Wait() }() // how a browser ends says nothing
		}
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return func() { os.RemoveAll(dir) }, nil
}
