// SPDX-License-Identifier: Apache-2.0

// Package wire is the protocol of the agent's API, which the command `weir-agent ask` and who runs
// it from outside have in common: an agent answers questions by HTTP/1.1 at a unix socket in its
// run folder; ask sends one question and copies the answer to its standard output.
package wire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"
)

// SocketName is the name of the socket in the agent's run folder.
const SocketName = "ask.sock"

// MaxBody bounds the body of a question, bytes: it travels as an argument of a command.
const MaxBody = 64 << 10

// Exit codes of `weir-agent ask`. Any other than 0 comes with a line on standard error.
const (
	ExitFailed  = 1 // anything else
	ExitRefused = 3 // the agent answered with an error (HTTP 4xx or 5xx, but 404 for a path it does not have)
	ExitUnknown = 4 // the agent does not know this question: it is of another version
	ExitNoAgent = 5 // nobody answers at the socket
)

// Error is a failure of Do, with its exit code.
type Error struct {
	Code int
	Text string
}

func (e *Error) Error() string { return e.Text }

// UnknownQuestion is the header that an agent sets when it does not have the path that was asked.
const UnknownQuestion = "Weir-Unknown-Question"

// Question is one question: GET without a body, POST with one.
type Question struct {
	Path string // with a query, such as /events?follow=true
	Body string
}

// Do asks the agent whose run folder is given and copies its answer to out as it comes, until the
// answer or ctx ends. All its errors but those of out and of ctx are *Error.
func Do(ctx context.Context, runDir string, q Question, out io.Writer) error {
	if !strings.HasPrefix(q.Path, "/") {
		return &Error{ExitFailed, fmt.Sprintf("the path %q does not begin with /", q.Path)}
	}
	socket := Socket(runDir)
	method, body := http.MethodGet, io.Reader(nil)
	if q.Body != "" {
		method, body = http.MethodPost, strings.NewReader(q.Body)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://agent"+q.Path, body)
	if err != nil {
		return &Error{ExitFailed, fmt.Sprintf("the path %q: %v", q.Path, err)}
	}
	transport := &http.Transport{DisableCompression: true, DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "unix", socket)
	}}
	resp, err := transport.RoundTrip(req)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED):
		return &Error{ExitNoAgent, fmt.Sprintf("nobody answers at %s: the agent is starting, or has ended", socket)}
	case err != nil:
		return &Error{ExitFailed, fmt.Sprintf("asking the agent at %s: %v", socket, err)}
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return refusal(resp, q.Path)
	}
	if _, err := io.Copy(out, resp.Body); err != nil && ctx.Err() != nil {
		return ctx.Err()
	} else if err != nil {
		return &Error{ExitFailed, fmt.Sprintf("the agent's answer ended early: %v", err)}
	}
	return nil
}

func refusal(resp *http.Response, path string) error {
	if resp.Header.Get(UnknownQuestion) != "" {
		return &Error{ExitUnknown, fmt.Sprintf("the agent does not know the question %s", path)}
	}
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	text = bytes.TrimSpace(text)
	if len(text) == 0 {
		text = []byte(resp.Status)
	}
	return &Error{ExitRefused, string(text)}
}
