// SPDX-License-Identifier: Apache-2.0

package nodecert

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/weir-net/weir/internal/sleep"
)

const (
	// lookEvery is between two questions to an agent whether it wants a certificate.
	lookEvery = 30 * time.Second
	// askWithin is how long an agent has to answer.
	askWithin = 10 * time.Second
	// requestMost bounds a request, bytes.
	requestMost = 16 << 10
)

// Agent asks one that has proved whose node it is of.
type Agent interface {
	Ask(ctx context.Context, method, path string, body io.Reader) (*http.Response, error)
}

// Signer has certificates signed for agents.
type Signer struct {
	// Sign signs for the key of a request and names, which alone count:
	// peerauth.Keeper.SignRequest.
	Sign func(ctx context.Context, request []byte, names []string) ([][]byte, error)
	// Names are those of a node's server, the one that its agent looks for first.
	Names func(node string) []string
	Log   *slog.Logger
}

// Keep looks after the certificate of a node's agent until ctx ends.
func (s *Signer) Keep(ctx context.Context, node string, agent Agent) {
	for said := ""; ; {
		err := s.once(ctx, node, agent)
		switch text := fmt.Sprint(err); {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errUnknown): // an agent of a version before
			return
		case err == nil:
			said = ""
		case text != said:
			said = text
			s.Log.Warn("an agent gets no certificate; trying again", "node", node, "err", err)
		}
		if sleep.For(ctx, lookEvery) != nil {
			return
		}
	}
}

var errUnknown = errors.New("the agent knows of no certificates")

// once signs where the agent wants it.
func (s *Signer) once(ctx context.Context, node string, agent Agent) error {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	resp, err := agent.Ask(ctx, http.MethodGet, Path, nil)
	if err != nil {
		return err
	}
	request, err := io.ReadAll(io.LimitReader(resp.Body, requestMost))
	resp.Body.Close()
	switch {
	case err != nil:
		return err
	case resp.StatusCode == http.StatusNotFound:
		return errUnknown
	case resp.StatusCode == http.StatusNoContent:
		return nil
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("the agent answers %s: %s", resp.Status, firstLine(request))
	}
	chain, err := s.Sign(ctx, request, s.Names(node))
	if err != nil {
		return err
	}
	resp, err = agent.Ask(ctx, http.MethodPut, Path, bytes.NewReader(encode(chain)))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		why, _ := io.ReadAll(io.LimitReader(resp.Body, requestMost)) //nolint:errcheck // the code says it
		return fmt.Errorf("the agent does not take its certificate: %s: %s", resp.Status, firstLine(why))
	}
	s.Log.Info("signed a certificate for Hubble's API", "node", node)
	return nil
}

// firstLine of what an agent says, quoted: it is its word.
func firstLine(text []byte) string {
	line, _, _ := strings.Cut(string(text), "\n")
	return fmt.Sprintf("%.200q", line)
}
