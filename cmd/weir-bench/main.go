// SPDX-License-Identifier: Apache-2.0

// Command weir-bench is the load of the demo and of the benchmarks: it serves and makes requests
// inside a network namespace of the lab and prints what it measured as JSON.
package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// noPreemption keeps Go's scheduler from sending signals to threads that block in system calls:
// they would only interrupt them.
const noPreemption = "asyncpreemptoff=1"

func main() {
	if os.Getenv("GODEBUG") != noPreemption {
		if self, err := os.Executable(); err == nil {
			os.Setenv("GODEBUG", noPreemption)
			err = unix.Exec(self, os.Args, os.Environ())
			fmt.Fprintln(os.Stderr, "weir-bench: starting again without preemption:", err)
			os.Exit(1)
		}
	}
	// Nothing here makes garbage worth collecting, and the collector cannot stop threads that
	// block.
	debug.SetGCPercent(-1)
	runtime.GOMAXPROCS(8)
	c := &cobra.Command{
		Use:           "weir-bench",
		Short:         "Servers and clients of the benchmarks",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	c.AddCommand(serverCommand(), requestsCommand(), apacheCommand(), roundTripsCommand(), streamCommand(), datagramsCommand(), getCommand(), flushCommand(),
		agentCommand(), probeCommand(), nodeCommand(), helloCommand())
	if err := c.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "weir-bench:", err)
		os.Exit(1)
	}
}
