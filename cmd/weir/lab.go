// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
)

// newLab hands over to weir-lab, which is a program of its own: the lab's module needs what Weir
// does not.
func newLab() *cobra.Command {
	return &cobra.Command{
		Use: "lab", Short: "A real Kubernetes on this machine: up, status, exec, down",
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this program's folder: %w", err)
			}
			program := filepath.Join(filepath.Dir(self), "weir-lab")
			err = syscall.Exec(program, append([]string{"weir-lab"}, args...), os.Environ())
			if errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("%s is not there: build it in the folder of this program with `make build`", program)
			}
			return fmt.Errorf("run %s: %w", program, err)
		},
	}
}
