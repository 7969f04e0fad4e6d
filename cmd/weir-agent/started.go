// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/weir-net/weir/internal/agent"
	"github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/localsock"
)

// startedCommand is the startup probe of the agent's container. The health port cannot distinguish
// the two agents of a node that overlap in a rollout: the one before answers there until it
// has handed over, also when the new container is asked. The PID namespace is the container's own.
func startedCommand() *cobra.Command {
	var runDir string
	cmd := &cobra.Command{
		Use:   "started",
		Short: "Exit with code 0 if the agent at work on this machine is this container's: its startup probe",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			switch pid, err := localsock.ListenerPID(filepath.Join(runDir, wire.SocketName)); {
			case err != nil:
				return fmt.Errorf("no agent works on this machine: %w", err)
			case pid == 0:
				return errors.New("the agent that works on this machine is of another container")
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&runDir, "run-dir", agent.DefaultRunDir, "run folder of the agent")
	return cmd
}
