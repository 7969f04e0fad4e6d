// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/weir-net/weir/internal/bench"
	"github.com/weir-net/weir/internal/bench/load"
)

func apacheCommand() *cobra.Command {
	var c client
	var count, concurrency int
	cmd := &cobra.Command{
		Use:   "ab ADDRESS:PORT",
		Short: "Make requests with ApacheBench, each on a connection of its own; the server is one with --close",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.prepare(args[0]); err != nil {
				return err
			}
			if c.warmUp > 0 {
				if _, err := load.Apache(c.target, c.warmUp, concurrency); err != nil {
					return fmt.Errorf("warming up: %w", err)
				}
			}
			r := bench.Run{Kind: "ab"}
			before, err := c.serverCPU()
			if err != nil {
				return err
			}
			w, err := bench.Open()
			if err != nil {
				return err
			}
			own := load.ProcessCPU() + load.ChildrenCPU()
			times, err := load.Apache(c.target, count, concurrency)
			if err != nil {
				return err
			}
			own = load.ProcessCPU() + load.ChildrenCPU() - own
			if err := w.Close(&r, own); err != nil {
				return err
			}
			after, err := c.serverCPU()
			if err != nil {
				return err
			}
			server := (after - before).Seconds()
			r.Own += server
			r.Others = max(0, r.Others-server/r.Elapsed)
			r.Times = times
			return printRun(cmd.OutOrStdout(), r)
		},
	}
	c.flags(cmd)
	cmd.Flags().IntVar(&count, "count", 50000, "number of requests")
	cmd.Flags().IntVar(&concurrency, "concurrency", 10, "requests at a time")
	cmd.Flags().IntVar(&c.warmUp, "warm-up", 0, "requests before those that count")
	cmd.Flags().BoolVar(&c.counting, "server-cpu", false, "the server is one of this program: subtract its CPU time from what others use")
	return cmd
}
