// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/weir-net/weir/api/client/clientset"
	"github.com/weir-net/weir/internal/agentapi"
	"github.com/weir-net/weir/internal/flows/access"
	"github.com/weir-net/weir/internal/flows/ask"
	"github.com/weir-net/weir/internal/goldmane"
	"github.com/weir-net/weir/internal/httplimit"
	"github.com/weir-net/weir/internal/hubble"
	"github.com/weir-net/weir/internal/peerauth"
	page "github.com/weir-net/weir/internal/ui"
	"github.com/weir-net/weir/internal/ui/metrics"
	"github.com/weir-net/weir/internal/ui/oidc"
	"github.com/weir-net/weir/internal/ui/session"
	"github.com/weir-net/weir/internal/ui/source"
	"github.com/weir-net/weir/internal/version"
)

const (
	servePort = ":8443"
	certDir   = "/var/run/secrets/weir/tls"
	// Bounds of connections. Users behind one proxy have one address.
	serveConns          = 1024
	serveConnsPerSource = 256
	// How many questions to the API server there are a second, and at once: rights are asked for by
	// namespace.
	serveQPS, serveBurst = 100, 200
)

// serveOrigins are those by which the page is reached in any case: inside of the cluster, and by a
// forwarded port.
var serveOrigins = []string{"https://weir-ui.kube-system.svc", "https://localhost:8443", "https://127.0.0.1:8443"}

func newServe(p Program) *cobra.Command {
	s := serving{program: p}
	cmd := &cobra.Command{Use: "serve", Short: "Serve the page to all users of the cluster, who log in (Deployment weir-ui)", Args: cobra.NoArgs,
		Long: `Serve the page by TLS to all users of the cluster, as the Deployment that weir install --ui makes does. Users log in by a bearer token
of the API server, or at an issuer of OpenID Connect whose ID tokens the API server takes. Flow records are read with the rights of this program; each user sees those of which one end is in a namespace
where the user may list flows (group live.weir.dev). All else is asked with the user's own token.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.run(cmd.Context(), slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil)))
		}}
	f := cmd.Flags()
	f.StringVar(&s.listen, "listen", servePort, "`address` and port")
	f.StringSliceVar(&s.origins, "origin", nil, "further `origins` by which browsers reach the page, such as https://weir.example.com; requests to others are refused")
	f.StringVar(&s.apis, "apis", "", "`address` and port of Hubble's Observer API and of Goldmane's Flows and Statistics over the store of flow records (empty: they are not served)")
	f.StringVar(&s.clientCA, "client-ca", "", "`file` with the authorities of clients of these APIs that need no token: who has a certificate of one sees the flows of all namespaces")
	f.StringVar(&s.oidcDir, "oidc-dir", "", "`folder` with the issuer of OpenID Connect at which users may log in: files issuer, client-id, client-secret, scopes, ca.crt")
	f.StringVar(&s.certDir, "tls-dir", certDir, "`folder` with the server's certificate and key, tls.crt and tls.key; they are read for each connection")
	return cmd
}

type serving struct {
	program         Program
	listen, certDir string
	apis, clientCA  string
	oidcDir         string
	origins         []string
}

func (s *serving) run(ctx context.Context, log *slog.Logger) error {
	origins := serveOrigins
	for _, o := range s.origins {
		if err := CheckOrigin(o); err != nil {
			return fmt.Errorf("--origin: %w", err)
		}
		origins = append(origins, o)
	}
	_, agents, err := s.program.Reach()
	if err != nil {
		return err
	}
	cfg := rest.CopyConfig(agents.Config)
	cfg.QPS, cfg.Burst = serveQPS, serveBurst
	own, err := clientset.New(cfg, "weir-ui/"+version.Version)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", s.listen)
	if err != nil {
		return fmt.Errorf("listen for browsers: %w", err)
	}
	log.Info("the page is served", "version", version.Version, "address", l.Addr().String(), "origins", origins)
	asker := &agentapi.Client{Kube: own.Kube, Config: cfg, Namespace: agents.Namespace}
	guard := access.New(own.Kube)
	var users *session.Keeper
	measured := metrics.New(func() int { return users.Sessions() })
	askStore := measured.Asks(asker.AskStore)
	users = s.sessions(guard, source.Recorded{Clients: own, AskStore: askStore, Ask: asker.Ask}, cfg, agents.Namespace, log)
	g, ctx := errgroup.WithContext(ctx)
	if s.apis != "" {
		l, err := net.Listen("tcp", s.apis)
		if err != nil {
			return fmt.Errorf("listen for clients of the APIs: %w", err)
		}
		calls := &access.Calls{Guard: guard, Store: &ask.Store{Ask: askStore}}
		g.Go(func() error {
			return serveAPIs(ctx, httplimit.NewListener(l, serveConns, serveConnsPerSource), own.Kube, calls, measured, s.tlsOfAPIs(log))
		})
	}
	g.Go(func() error {
		return s.serve(ctx, l, measured.Handler(guard, own.Kube, measured.Requests(handler(users, origins, log)), log), log)
	})
	return g.Wait()
}

// serveAPIs serves Hubble's and Goldmane's APIs over the store until ctx ends.
func serveAPIs(ctx context.Context, l net.Listener, kube kubernetes.Interface, calls *access.Calls, measured *metrics.Metrics, cfg *tls.Config) error {
	begin := func(ctx context.Context) (*access.Call, func(), error) {
		call, done, err := calls.Begin(ctx)
		if err != nil {
			return nil, nil, err
		}
		ended := measured.Stream()
		return call, func() { ended(); done() }, nil
	}
	flowsOf := &goldmane.Server{Open: func(ctx context.Context) (goldmane.Reader, func(), error) {
		call, done, err := begin(ctx)
		if err != nil {
			return nil, nil, err
		}
		return call, done, nil
	}}
	stored := &hubble.Stored{Version: "Weir " + version.Version, Began: time.Now(),
		Open: func(ctx context.Context) (hubble.Reader, func(), error) {
			call, done, err := begin(ctx)
			if err != nil {
				return nil, nil, err
			}
			return call, done, nil
		},
		Nodes: func(ctx context.Context) ([]hubble.Node, error) {
			list, err := kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
			if err != nil {
				return nil, errors.New("the API server does not say which nodes there are")
			}
			var out []hubble.Node
			for i := range list.Items {
				n := hubble.Node{Name: list.Items[i].Name}
				for _, a := range list.Items[i].Status.Addresses {
					if addr, err := netip.ParseAddr(a.Address); err == nil {
						n.Addrs = append(n.Addrs, addr.Unmap())
					}
				}
				out = append(out, n)
			}
			return out, nil
		}}
	return stored.Serve(ctx, l, cfg, flowsOf.Register)
}

// tlsOfAPIs is tls, which takes certificates of clients where their authorities are named.
func (s *serving) tlsOfAPIs(log *slog.Logger) *tls.Config {
	cfg := s.tls(log, "h2")
	if s.clientCA == "" {
		return cfg
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: cfg.NextProtos, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		text, err := os.ReadFile(s.clientCA)
		if err != nil {
			return nil, fmt.Errorf("read the authorities of clients: %w", err)
		}
		out := cfg.Clone()
		out.ClientAuth, out.ClientCAs = tls.VerifyClientCertIfGiven, x509.NewCertPool()
		if !out.ClientCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s has no certificate", s.clientCA)
		}
		return out, nil
	}}
}

// tls is what is served by: the certificate and its key are read for each connection.
func (s *serving) tls(log *slog.Logger, protocols ...string) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: protocols, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(filepath.Join(s.certDir, "tls.crt"), filepath.Join(s.certDir, "tls.key"))
		if errors.Is(err, os.ErrNotExist) {
			log.Warn("there is no serving certificate yet: the controller makes it", "folder", s.certDir)
		}
		return &pair, err
	}}
}

// CheckOrigin says whether a text is an origin as browsers write it: of https, without a path.
func CheckOrigin(text string) error {
	at, err := url.Parse(text)
	if err != nil || at.Scheme != "https" || at.Host == "" || text != "https://"+at.Host {
		return fmt.Errorf("%q is not an origin such as https://weir.example.com", text)
	}
	return nil
}

// handler is the page with log-in.
func handler(users *session.Keeper, origins []string, log *slog.Logger) http.Handler {
	return page.New(page.Config{Origins: origins, Access: users.Access, Session: users, Log: log})
}

// sessions keeps who is logged in. recorded are read with the rights of this program, and guard
// says which of them a user sees; other questions go to the API server of cfg with the user's
// token.
func (s *serving) sessions(guard *access.Guard, recorded page.Records, cfg *rest.Config, namespace string, log *slog.Logger) *session.Keeper {
	var issuer *oidc.Issuer
	if s.oidcDir != "" {
		issuer = oidc.New(s.oidcDir)
	}
	return session.New(guard, func(token string, u *peerauth.User) (page.Source, error) {
		theirs := rest.AnonymousClientConfig(cfg)
		theirs.BearerToken = token
		clients, err := clientset.New(theirs, "weir-ui/"+version.Version)
		if err != nil {
			return nil, err
		}
		of := source.New(clients, &agentapi.Client{Kube: clients.Kube, Config: theirs, Namespace: namespace}, func(ctx context.Context) (*page.Cluster, error) { return s.program.Status(ctx, clients) })
		of.From = source.Scoped{From: recorded, Guard: guard, User: u}
		return of, nil
	}, issuer, log)
}

// serve serves by TLS at a listener until ctx ends.
func (s *serving) serve(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) error {
	server := httplimit.NewServer(h)
	server.WriteTimeout = answerWithin
	server.BaseContext = func(net.Listener) context.Context { return ctx }
	server.ErrorLog = slog.NewLogLogger(log.Handler(), slog.LevelDebug) // whoever reaches the port can fail to connect
	server.TLSConfig = s.tls(log)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		ending, cancel := context.WithTimeout(context.Background(), endWithin)
		defer cancel()
		_ = server.Shutdown(ending) // what is left is closed with the process
	}()
	err := server.ServeTLS(httplimit.NewListener(l, serveConns, serveConnsPerSource), "", "")
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the page: %w", err)
	}
	<-stopped
	return nil
}
