// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
)

// newNode holds what the DaemonSet runs on a node.
func newNode() *cobra.Command {
	node := &cobra.Command{Use: "node", Short: "What the DaemonSet runs on a node", Hidden: true}
	var from, to string
	install := &cobra.Command{Use: "install-cni", Short: "Put the CNI plugin where the container runtime looks for it", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			target, err := installProgram(from, to)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "installed", target)
			return nil
		}}
	install.Flags().StringVar(&from, "from", "/weir-cni", "the plugin")
	install.Flags().StringVar(&to, "to", "/opt/cni/bin", "the folder of the container runtime's plugins")
	node.AddCommand(install)
	return node
}

// installProgram copies a program into a folder in one step: a container runtime that starts it
// meanwhile gets the old one or the new one, and a failed copy leaves nothing behind.
func installProgram(from, dir string) (string, error) {
	target := filepath.Join(dir, filepath.Base(from))
	in, err := os.Open(from)
	if err != nil {
		return "", fmt.Errorf("install %s: %w", target, err)
	}
	defer in.Close()
	out, err := os.CreateTemp(dir, "."+filepath.Base(from)+"-")
	if err != nil {
		return "", fmt.Errorf("install %s: %w", target, err)
	}
	defer os.Remove(out.Name()) // fails once it was renamed
	_, err = io.Copy(out, in)
	if err == nil {
		err = out.Chmod(0o755)
	}
	if err == nil {
		err = out.Sync()
	}
	if closeErr := out.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(out.Name(), target)
	}
	if err != nil {
		return "", fmt.Errorf("install %s: %w", target, err)
	}
	return target, nil
}
