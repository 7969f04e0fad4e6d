// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/weir-net/weir/api/client/clientset"
	"github.com/weir-net/weir/internal/agentapi"
	"github.com/weir-net/weir/internal/flows/access"
	"github.com/weir-net/weir/internal/httplimit"
	"github.com/weir-net/weir/internal/peerauth"
	page "github.com/weir-net/weir/internal/ui"
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
of the API server. Flow records are read with the rights of this program; each user sees those of which one end is in a namespace
where the user may list flows (group live.weir.dev). All else is asked with the user's own token.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.run(cmd.Context(), slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil)))
		}}
	f := cmd.Flags()
	f.StringVar(&s.listen, "listen", servePort, "`address` and port")
	f.StringSliceVar(&s.origins, "origin", nil, "further `origins` by which browsers reach the page, such as https://weir.example.com; requests to others are refused")
	f.StringVar(&s.certDir, "tls-dir", certDir, "`folder` with the server's certificate and key, tls.crt and tls.key; they are read for each connection")
	return cmd
}

type serving struct {
	program         Program
	listen, certDir string
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
	recorded := source.Recorded{Clients: own, AskStore: asker.AskStore, Ask: asker.Ask}
	return s.serve(ctx, l, s.handler(own, recorded, cfg, agents.Namespace, origins, log), log)
}

// CheckOrigin says whether a text is an origin as browsers write it: of https, without a path.
func CheckOrigin(text string) error {
	at, err := url.Parse(text)
	if err != nil || at.Scheme != "https" || at.Host == "" || text != "https://"+at.Host {
		return fmt.Errorf("%q is not an origin such as https://weir.example.com", text)
	}
	return nil
}

// handler is the page with log-in. own has the rights of this program, with which recorded are
// read; users' questions go to the API server of cfg. Agents are in a namespace.
func (s *serving) handler(own *clientset.Clients, recorded page.Records, cfg *rest.Config, namespace string, origins []string, log *slog.Logger) http.Handler {
	guard := access.New(own.Kube)
	sessions := session.New(guard, func(token string, u *peerauth.User) (page.Source, error) {
		theirs := rest.AnonymousClientConfig(cfg)
		theirs.BearerToken = token
		clients, err := clientset.New(theirs, "weir-ui/"+version.Version)
		if err != nil {
			return nil, err
		}
		of := source.New(clients, &agentapi.Client{Kube: clients.Kube, Config: theirs, Namespace: namespace}, func(ctx context.Context) (*page.Cluster, error) { return s.program.Status(ctx, clients) })
		of.From = source.Scoped{From: recorded, Guard: guard, User: u}
		return of, nil
	}, log)
	return page.New(page.Config{Origins: origins, Access: sessions.Access, Session: sessions, Log: log})
}

// serve serves by TLS at a listener until ctx ends.
func (s *serving) serve(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) error {
	server := httplimit.NewServer(h)
	server.WriteTimeout = answerWithin
	server.BaseContext = func(net.Listener) context.Context { return ctx }
	server.ErrorLog = slog.NewLogLogger(log.Handler(), slog.LevelDebug) // whoever reaches the port can fail to connect
	server.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(filepath.Join(s.certDir, "tls.crt"), filepath.Join(s.certDir, "tls.key"))
		if errors.Is(err, os.ErrNotExist) {
			log.Warn("there is no serving certificate yet: the controller makes it", "folder", s.certDir)
		}
		return &pair, err
	}}
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
