// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"github.com/weir-net/weir/internal/agent"
)

// cleanUpCommand removes what agents left on the node.
func cleanUpCommand(level *string) *cobra.Command {
	var o agent.CleanUpOptions
	var done bool
	cmd := &cobra.Command{
		Use:   "clean-up",
		Short: "Remove everything of Weir from this node: programs, tables, routes, devices, files, and the network of pods that are left",
		Long: `clean-up removes from this node what agents made. Pods that are still there lose their network. It needs no API server, and
ends with an error while an agent runs. weir uninstall --clean-nodes does it on each node.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := newLogger(*level)
			if err != nil {
				return err
			}
			if done {
				<-cmd.Context().Done()
				return nil
			}
			o.Log = log
			return agent.CleanUp(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.StateDir, "state-dir", agent.DefaultStateDir, "folder for what survives a reboot")
	f.StringVar(&o.RunDir, "run-dir", agent.DefaultRunDir, "folder for what need not survive a reboot, and the socket of the CNI plugin")
	f.StringVar(&o.BPFFS, "bpffs", agent.DefaultBPFFS, "folder on a BPF file system with maps and links")
	f.StringVar(&o.CNIConfDir, "cni-conf-dir", agent.DefaultCNIConfDir, "where the container runtime looks for network configurations")
	f.StringVar(&o.CNIBin, "cni-bin", "/opt/cni/bin/weir-cni", "the CNI plugin; empty = it stays")
	f.BoolVar(&o.KeepPods, "keep-pods", false, "leave pods their interfaces, which another network plugin carries already")
	f.BoolVar(&done, "done", false, "remove nothing and wait, so that the pod's state shows that its init container has removed everything")
	return cmd
}
