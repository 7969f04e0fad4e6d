// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/weir-net/weir/internal/agent"
	"github.com/weir-net/weir/internal/agentapi/wire"
)

// askCommand sends a question to the agent that runs on this machine, and writes its answer.
func askCommand() *cobra.Command {
	var q wire.Question
	var runDir string
	var attended bool
	cmd := &cobra.Command{
		Use:   "ask PATH",
		Short: "Ask the agent that runs on this machine, such as ask /version; weir itself asks agents this way",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			q.Path = args[0]
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			if attended {
				go func() {
					_, _ = io.Copy(io.Discard, cmd.InOrStdin())
					cancel()
				}()
			}
			if err := wire.Do(ctx, runDir, q, cmd.OutOrStdout()); err != nil && ctx.Err() == nil {
				return err
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVarP(&q.Body, "data", "d", "", "body of the question; makes it a POST")
	f.StringVar(&runDir, "run-dir", agent.DefaultRunDir, "run folder of the agent")
	f.BoolVar(&attended, "attended", false, "end when the standard input does: a caller far away may go without closing the connection")
	return cmd
}

// exitCode reports what went wrong to the caller of this program.
func exitCode(err error) int {
	var e *wire.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 1
}
