// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// Bounds of what is read of a neighbour, which anything on the node's own network may be in place
// of: the port is on loopback, and free where the program does not run.
const (
	neighbourTimeout = 2 * time.Second
	neighbourMost    = 1 << 20 // bytes
)

// Neighbour is a program that serves metrics on the node's loopback.
type Neighbour struct {
	Addr   string // host:port
	Prefix string // of the names of its metrics; others are left out, the Go runtime's for one
}

// Neighbours gathers the metrics of programs that run on the same node; one that does not run there
// has none. It implements prometheus.Gatherer.
type Neighbours []Neighbour

// Gather implements prometheus.Gatherer. It returns what it could read with an error.
func (n Neighbours) Gather() ([]*dto.MetricFamily, error) {
	ctx, cancel := context.WithTimeout(context.Background(), neighbourTimeout)
	defer cancel()
	var all []*dto.MetricFamily
	var errs []error
	for _, each := range n {
		families, err := each.read(ctx)
		if err != nil {
			errs = append(errs, fmt.Errorf("metrics at %s: %w", each.Addr, err))
		}
		all = append(all, families...)
	}
	return all, errors.Join(errs...)
}

// local goes through no proxy, and keeps no connection open between scrapes.
var local = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

func (n Neighbour) read(ctx context.Context) ([]*dto.MetricFamily, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.Addr+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	resp, err := local.Do(req)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New(resp.Status)
	}
	body := &io.LimitedReader{R: resp.Body, N: neighbourMost}
	var parser expfmt.TextParser
	families, err := parser.TextToMetricFamilies(body)
	if body.N == 0 {
		return nil, fmt.Errorf("more than %d bytes", neighbourMost)
	}
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(families, func(name string, _ *dto.MetricFamily) bool { return !strings.HasPrefix(name, n.Prefix) })
	return slices.Collect(maps.Values(families)), nil
}
