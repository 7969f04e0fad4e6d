// SPDX-License-Identifier: Apache-2.0

// Command weir-lab runs a real multi-node Kubernetes on one machine, each node in
// namespaces of its own.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := root().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "weir-lab:", err)
		stop()
		os.Exit(1)
	}
}
