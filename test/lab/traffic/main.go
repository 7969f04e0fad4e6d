// SPDX-License-Identifier: Apache-2.0

// Command traffic is what the lab's tests send and answer with. It is built by the tests and runs
// in pods and in the network of clients and nodes. Every client ends when its standard input does,
// and then writes one line of JSON about what it saw.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
)

func main() {
	root := &cobra.Command{Use: "traffic", SilenceUsage: true}
	root.AddCommand(serverCommand(), streamCommand(), dialCommand(), datagramsCommand(), probeCommand(), getCommand(), escapeCommand(), cniCommand(), sourcesCommand(), addsCommand(), firstCommand())
	if err := root.Execute(); err != nil {
		os.Exit(1)
	}
}

// untilStdinEnds is a context that ends with the standard input.
func untilStdinEnds() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	return ctx
}

// say writes a line for the test.
func say(v any) error {
	if s, ok := v.(string); ok {
		_, err := fmt.Println(s)
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(v)
}
