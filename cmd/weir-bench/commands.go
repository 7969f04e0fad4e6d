// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/vishvananda/netlink"

	"github.com/weir-net/weir/internal/bench"
	"github.com/weir-net/weir/internal/bench/load"
)

func serverCommand() *cobra.Command {
	var http, udp, sink string
	var o load.ServerOptions
	c := &cobra.Command{
		Use:   "server",
		Short: "Serve until the standard input ends",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for text, at := range map[*string]*netip.AddrPort{&http: &o.HTTP, &udp: &o.UDP, &sink: &o.Sink} {
				if *text == "" {
					continue
				}
				var err error
				if *at, err = netip.ParseAddrPort(*text); err != nil {
					return err
				}
			}
			failed, err := load.Serve(o)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "ready")
			ended := make(chan struct{})
			go func() {
				_, _ = io.Copy(io.Discard, os.Stdin) // until it ends, however
				close(ended)
			}()
			select {
			case err := <-failed:
				return err
			case <-ended:
				return nil
			}
		},
	}
	f := c.Flags()
	f.StringVar(&http, "http", "", "answer HTTP requests at this address and port, one connection after the other")
	f.IntVar(&o.HTTPPorts, "http-ports", 1, "answer HTTP at so many ports, from that one on")
	f.BoolVar(&o.CloseFirst, "close", false, "close HTTP connections first, as ApacheBench expects")
	f.StringVar(&udp, "udp", "", "send datagrams back at this address and port")
	f.StringVar(&sink, "sink", "", "swallow streams at this address and port")
	f.IntVar(&o.CPU, "cpu", -1, "bind the HTTP and UDP servers to this CPU; -1 = any")
	f.IntVar(&o.SinkCPU, "sink-cpu", -1, "bind the sink to this CPU; -1 = any")
	return c
}

// client are the flags that all clients have.
type client struct {
	target   load.Target
	ports    string
	reuse    bool
	counting bool // the server reports its CPU time
	onWord   bool
	warmUp   int // connections or datagrams before those that count
}

func (c *client) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&c.ports, "ports", "10000-29999", "source ports")
	f.IntVar(&c.target.CPU, "cpu", -1, "bind to this CPU; -1 = any")
	f.DurationVar(&c.target.Patience, "patience", 5*time.Second, "how long one answer may take")
	f.DurationVar(&c.target.Limit, "limit", 2*time.Minute, "how long the whole run may take")
	f.BoolVar(&c.onWord, "on-word", false, "say ready, and begin when a line comes on the standard input")
	f.BoolVar(&c.reuse, "reuse-time-wait", false, "set net.ipv4.tcp_tw_reuse = 1 in this network namespace")
}

func (c *client) prepare(to string) error {
	var err error
	if c.target.To, err = netip.ParseAddrPort(to); err != nil {
		return err
	}
	if c.target.From, err = load.ParsePorts(c.ports); err != nil {
		return err
	}
	if c.reuse {
		if err := load.ReuseTimeWait(); err != nil {
			return err
		}
	}
	if c.onWord {
		fmt.Println("ready")
		if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
			return fmt.Errorf("waiting for the word to begin: %w", err)
		}
	}
	return nil
}

// serverCPU is 0 for a server that is not ours.
func (c *client) serverCPU() (time.Duration, error) {
	if !c.counting {
		return 0, nil
	}
	return load.ServerCPU(c.target)
}

// measure runs what is timed between two looks at the machine's CPUs.
func (c *client) measure(kind string, count int, do func(count int) ([]float64, error)) (bench.Run, []float64, error) {
	r := bench.Run{Kind: kind}
	if c.warmUp > 0 {
		if _, err := do(c.warmUp); err != nil {
			return r, nil, fmt.Errorf("warming up: %w", err)
		}
	}
	before, err := c.serverCPU()
	if err != nil {
		return r, nil, err
	}
	w, err := bench.Open()
	if err != nil {
		return r, nil, err
	}
	own := load.ProcessCPU()
	times, err := do(count)
	if err != nil {
		return r, times, err
	}
	own = load.ProcessCPU() - own
	if err := w.Close(&r, own); err != nil {
		return r, times, err
	}
	after, err := c.serverCPU()
	if err != nil {
		return r, times, err
	}
	server := (after - before).Seconds()
	r.Own += server
	r.Others = max(0, r.Others-server/r.Elapsed)
	r.Times = bench.Summarize(times)
	return r, times, nil
}

func printRun(w io.Writer, r bench.Run) error { return json.NewEncoder(w).Encode(r) }

func requestsCommand() *cobra.Command {
	var c client
	var count int
	var raw string
	cmd := &cobra.Command{
		Use:   "requests ADDRESS:PORT",
		Short: "Connect, request, close, one connection after the other",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.prepare(args[0]); err != nil {
				return err
			}
			r, times, err := c.measure("requests", count, func(n int) ([]float64, error) { return load.Requests(c.target, n) })
			if err != nil {
				return err
			}
			if raw != "" {
				if err := writeRaw(raw, times); err != nil {
					return err
				}
			}
			return printRun(cmd.OutOrStdout(), r)
		},
	}
	c.flags(cmd)
	cmd.Flags().IntVar(&count, "count", 1000, "number of connections")
	cmd.Flags().IntVar(&c.warmUp, "warm-up", 0, "connections before those that count")
	cmd.Flags().StringVar(&raw, "raw", "", "write the µs of each connection to this file, one a line")
	cmd.Flags().BoolVar(&c.counting, "server-cpu", false, "the server is one of this program: subtract its CPU time from what others use")
	return cmd
}

func writeRaw(path string, times []float64) error {
	var b bytes.Buffer
	for _, t := range times {
		b.WriteString(strconv.FormatFloat(t, 'f', 3, 64))
		b.WriteByte('\n')
	}
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
		return fmt.Errorf("writing the raw numbers: %w", err)
	}
	return nil
}

func roundTripsCommand() *cobra.Command {
	var c client
	var count, size int
	cmd := &cobra.Command{
		Use:   "roundtrips ADDRESS:PORT",
		Short: "Send datagrams, each after the answer to the one before",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.prepare(args[0]); err != nil {
				return err
			}
			r, _, err := c.measure("roundtrips", count, func(n int) ([]float64, error) { return load.RoundTrips(c.target, n, size) })
			if err != nil {
				return err
			}
			return printRun(cmd.OutOrStdout(), r)
		},
	}
	c.flags(cmd)
	cmd.Flags().IntVar(&count, "count", 1000, "number of datagrams")
	cmd.Flags().IntVar(&c.warmUp, "warm-up", 0, "datagrams before those that count")
	cmd.Flags().IntVar(&size, "size", 64, "bytes of a datagram")
	cmd.Flags().BoolVar(&c.counting, "server-cpu", false, "the server is one of this program with HTTP at the same port: subtract its CPU time from what others use")
	return cmd
}

func streamCommand() *cobra.Command {
	var c client
	var duration time.Duration
	cmd := &cobra.Command{
		Use:   "stream ADDRESS:PORT",
		Short: "Send one TCP stream to a sink",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.prepare(args[0]); err != nil {
				return err
			}
			w, err := bench.Open()
			if err != nil {
				return err
			}
			f, err := load.Stream(c.target, duration)
			if err != nil {
				return err
			}
			r := bench.Run{Kind: "stream", Gbits: float64(f.Bytes) * 8 / f.Elapsed.Seconds() / 1e9}
			if err := w.Close(&r, f.ClientCPU+f.ServerCPU); err != nil {
				return err
			}
			// The path's work in interrupts is in nobody's CPU time, so others are measured by what
			// is not the kernel's: a stream does next to nothing of that kind.
			r.Others = r.User / r.Elapsed
			r.CPUPer = r.Busy / (float64(f.Bytes) / 1e9)
			return printRun(cmd.OutOrStdout(), r)
		},
	}
	c.flags(cmd)
	cmd.Flags().DurationVar(&duration, "time", 2*time.Second, "how long to send")
	return cmd
}

func datagramsCommand() *cobra.Command {
	var c client
	var duration time.Duration
	var rate load.Rate
	cmd := &cobra.Command{
		Use:   "datagrams ADDRESS:PORT",
		Short: "Send datagrams at a fixed rate to a sink",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.prepare(args[0]); err != nil {
				return err
			}
			w, err := bench.Open()
			if err != nil {
				return err
			}
			f, sent, err := load.Datagrams(c.target, duration, rate)
			if err != nil {
				return err
			}
			if f.Bytes == 0 {
				return fmt.Errorf("none of %d bytes arrived at %v", sent, c.target.To)
			}
			r := bench.Run{Kind: "datagrams", Gbits: float64(sent) * 8 / f.Elapsed.Seconds() / 1e9, Lost: 1 - float64(f.Bytes)/float64(sent)}
			r.Held = r.Gbits * 1e9 / rate.Bits
			own := f.ClientCPU + f.ServerCPU
			if err := w.Close(&r, own); err != nil {
				return err
			}
			r.CPUPer = own.Seconds() / (float64(f.Bytes) / 1e9)
			return printRun(cmd.OutOrStdout(), r)
		},
	}
	c.flags(cmd)
	cmd.Flags().DurationVar(&duration, "time", time.Second, "how long to send")
	cmd.Flags().IntVar(&rate.Size, "size", 1400, "bytes of a datagram")
	cmd.Flags().Float64Var(&rate.Bits, "rate", 250e6, "bits a second")
	return cmd
}

func getCommand() *cobra.Command {
	var c client
	var path string
	cmd := &cobra.Command{
		Use:   "get ADDRESS:PORT",
		Short: "Make one request and print the answer's body",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.prepare(args[0]); err != nil {
				return err
			}
			body, err := load.Ask(c.target, path)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), body)
			return nil
		},
	}
	c.flags(cmd)
	cmd.Flags().StringVar(&path, "path", "/", "what to ask for")
	return cmd
}

func flushCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "flush-conntrack",
		Short: "Forget the kernel's tracked connections of this network namespace",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
				return fmt.Errorf("flushing the connection table: %w", err)
			}
			return nil
		},
	}
}
