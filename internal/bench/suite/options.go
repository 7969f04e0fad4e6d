// SPDX-License-Identifier: Apache-2.0

// Package suite runs `weir bench` on a cluster, whatever carries its pod network: it makes a few
// pods in a namespace of its own, has them measure in rounds, and removes everything. It needs
// nothing but the API server.
package suite

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Options say what to measure and how.
type Options struct {
	Name, ClientNode, ServerNode string
	Image                        string
	Duration, WarmUp             time.Duration
	Rounds                       int
	Rows                         []string // names, patterns and groups
	Streams                      int      // of tcp-many
	UDPRate                      float64  // bits a second of udp-rate
	Requests                     int      // of http; ab makes five times as many
	Concurrency                  int      // of ab and cps
	Congestion                   string
	IPFamily                     string // IPv4, IPv6; empty = the cluster's first
	Services                     []int  // sizes: how many other Services there are
	Policies                     int    // how many other policies there are, for the rows of the control plane
	Changes                      int    // of a row of the control plane, in a round
	HostPort                     uint16 // of the servers in the nodes' networks; 0 = any
	PodPatience                  time.Duration
	Version                      string
}

// Defaults are a run of about a quarter of an hour.
func Defaults() Options {
	return Options{Image: "weir.local/weir-bench:dev", Duration: 5 * time.Second, WarmUp: 500 * time.Millisecond, Rounds: 6, Rows: []string{"default"},
		Streams: 8, UDPRate: 1e9, Requests: 10_000, Concurrency: 10, Changes: 10, PodPatience: 2 * time.Minute}
}

// Check says what cannot be.
func (o *Options) Check() error {
	switch {
	case o.Duration < time.Second || o.Duration > 10*time.Minute:
		return fmt.Errorf("duration %v: want 1s to 10m; CPU time is counted in hundredths of a second", o.Duration)
	case o.WarmUp < 0 || o.WarmUp > time.Minute:
		return fmt.Errorf("warm-up %v: want up to 1m", o.WarmUp)
	case o.Rounds < 1 || o.Rounds > 1000:
		return fmt.Errorf("%d rounds: want 1 to 1000", o.Rounds)
	case o.Streams < 1 || o.Streams > 128 || o.Concurrency < 1 || o.Concurrency > 128:
		return errors.New("streams and concurrency: want 1 to 128")
	case o.UDPRate <= 0:
		return errors.New("the rate of udp-rate must be above zero")
	case o.Requests < 1 || o.Requests > 1_000_000 || o.Changes < 1 || o.Changes > 1000:
		return errors.New("requests: want 1 to 1000000; changes: want 1 to 1000")
	case o.IPFamily != "" && o.IPFamily != "IPv4" && o.IPFamily != "IPv6":
		return fmt.Errorf("IP family %q: want IPv4 or IPv6", o.IPFamily)
	case o.Image == "":
		return errors.New("no image")
	case o.Policies < 0 || o.Policies > 50_000:
		return fmt.Errorf("%d policies: want up to 50000", o.Policies)
	}
	for _, n := range o.Services {
		if n < 0 || n > 100_000 {
			return fmt.Errorf("%d Services: want up to 100000", n)
		}
	}
	if !slices.IsSorted(o.Services) {
		return errors.New("numbers of Services must rise")
	}
	if len(o.Services) == 0 {
		o.Services = []int{0}
	}
	return nil
}
