// SPDX-License-Identifier: Apache-2.0

// Package tunnel lets an agent answer questions by a connection that it made itself: it asks a
// server, the controller or the store of flow records, to turn the connection round, and serves
// HTTP/2 on it from then on. So agents listen nowhere, and whoever answers as the agent of a node
// has proved to be it. The store answers the controller in the same way.
package tunnel

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/net/http2"

	"github.com/weir-net/weir/internal/flowstore/names"
	"github.com/weir-net/weir/internal/httplimit"
	"github.com/weir-net/weir/internal/peerauth/trust"
)

const (
	// Path is where agents ask for it, StorePath where the store does; Protocol is what they ask
	// for.
	Path      = "/agent"
	StorePath = "/store"
	Protocol  = "weir-agent/1"
	// TokenPath is where an agent sends the token by which it can prove itself again.
	TokenPath = "/token"
)

// ServerName is the name in the certificate of controllers, and Audience what the tokens of agents
// are made for. StoreName is both of the store of flow records.
const (
	ServerName = "weir-controller.kube-system.svc"
	Audience   = ServerName
	StoreName  = names.ServerName
)

// Server is who asks by a connection that was made to it.
type Server struct {
	Name  string // in its certificate
	Path  string // where it is asked to turn the connection round
	Token func(trust.Folder) (string, error)
}

// Controller is the controller to an agent.
func Controller() Server { return Server{ServerName, Path, trust.Folder.Token} }

// Store is the store of flow records to an agent.
func Store() Server { return Server{StoreName, Path, trust.Folder.StoreToken} }

// ControllerOfStore is the controller to the store of flow records.
func ControllerOfStore() Server { return Server{ServerName, StorePath, trust.Folder.Token} }

const (
	// greeting is how long the two ends have until the connection is turned round.
	greeting = 10 * time.Second
	// silence is after how long the other end is asked whether it is there, and for how long it may
	// not answer.
	silence = 20 * time.Second
	// streamBuffer bounds what is read ahead of who asked, bytes; maxStreams the questions at a
	// time.
	streamBuffer = 64 << 10
	maxStreams   = 64
	maxHeader    = 16 << 10
)

// Accept turns the connection of a request round, and returns what asks the agent by it. It has
// been authenticated.
func Accept(w http.ResponseWriter, r *http.Request) (*Conn, error) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, fmt.Errorf("take over the connection: %w", err)
	}
	if buffered.Reader.Buffered() > 0 {
		conn.Close()
		return nil, errors.New("the agent did not wait for the answer")
	}
	httplimit.Keep(conn)                           // a node has one: an older one of it is closed
	_ = conn.SetDeadline(time.Now().Add(greeting)) // a connection that is gone says so below
	answer := "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + Protocol + "\r\n\r\n"
	if _, err := io.WriteString(conn, answer); err != nil {
		conn.Close()
		return nil, fmt.Errorf("answer the agent: %w", err)
	}
	_ = conn.SetDeadline(time.Time{})
	transport, err := http2.ConfigureTransports(&http.Transport{DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
		HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: streamBuffer, MaxReceiveBufferPerConnection: maxStreams * streamBuffer,
			SendPingTimeout: silence, PingTimeout: silence, WriteByteTimeout: silence}})
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("prepare asking the agent: %w", err)
	}
	client, err := transport.NewClientConn(conn)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("begin asking the agent: %w", err)
	}
	return &Conn{client: client, conn: conn}, nil
}

// Wanted reports whether a request asks for its connection to be turned round.
func Wanted(r *http.Request) bool {
	return r.ProtoMajor == 1 && strings.EqualFold(r.Header.Get("Upgrade"), Protocol)
}

// Token returns the token that such a request came with.
func Token(r *http.Request) string {
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return token
}

// Conn asks one agent.
type Conn struct {
	client *http2.ClientConn
	conn   net.Conn
}

// Ask sends a question; the body of the answer must be closed. The path may have a query.
func (c *Conn) Ask(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "https://agent"+path, body)
	if err != nil {
		return nil, fmt.Errorf("the path %q: %w", path, err)
	}
	return c.client.RoundTrip(req)
}

// Alive reports whether questions can be asked.
func (c *Conn) Alive() bool { s := c.client.State(); return !s.Closed && !s.Closing }

// Close ends the connection and with it every answer that is under way.
func (c *Conn) Close() { c.client.Close() }

// Answer connects to a server and answers its questions until ctx or the connection ends. The token
// is sent to a server that Weir's authorities vouch for, and to nobody else.
func (to Server) Answer(ctx context.Context, dialer *net.Dialer, addr string, folder trust.Folder, handler http.Handler) error {
	config, err := folder.Client(to.Name)
	if err != nil {
		return err
	}
	token, err := to.Token(folder)
	if err != nil {
		return err
	}
	dialing, cancel := context.WithTimeout(ctx, greeting)
	defer cancel()
	conn, err := (&tls.Dialer{Config: config, NetDialer: dialer}).DialContext(dialing, "tcp", addr)
	if err != nil {
		return err
	}
	return to.serve(ctx, conn, token, handler)
}

// serve asks the server at the other end to turn the connection round, and answers its
// questions until ctx or the connection ends. The connection is closed in any case.
func (to Server) serve(ctx context.Context, conn net.Conn, token string, handler http.Handler) error {
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(greeting)) // a connection that is gone says so below
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+to.Name+to.Path, nil)
	if err != nil {
		return fmt.Errorf("prepare the connection: %w", err)
	}
	req.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {Protocol}, "Authorization": {"Bearer " + token}}
	if err := req.Write(conn); err != nil {
		return fmt.Errorf("ask the server: %w", err)
	}
	read := bufio.NewReader(conn)
	resp, err := http.ReadResponse(read, req)
	if err != nil {
		return fmt.Errorf("read the server's answer: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusSwitchingProtocols {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return fmt.Errorf("the server refuses: %s: %s", resp.Status, strings.TrimSpace(string(text)))
	}
	_ = conn.SetDeadline(time.Time{})
	server := &http2.Server{MaxConcurrentStreams: maxStreams, MaxUploadBufferPerStream: streamBuffer, MaxUploadBufferPerConnection: maxStreams * streamBuffer,
		ReadIdleTimeout: silence, PingTimeout: silence, WriteByteTimeout: silence}
	server.ServeConn(&buffered{conn, read}, &http2.ServeConnOpts{Context: ctx, BaseConfig: &http.Server{MaxHeaderBytes: maxHeader}, Handler: handler})
	return ctx.Err()
}

// buffered is a connection of which something was read ahead.
type buffered struct {
	net.Conn
	r *bufio.Reader
}

func (b *buffered) Read(p []byte) (int, error) { return b.r.Read(p) }
