// SPDX-License-Identifier: Apache-2.0

// Command weir-cni is the CNI plugin of Weir: the container runtime runs it for every pod, and it
// asks the agent of the node.
package main

import (
	"os"

	"github.com/weir-net/weir/internal/cni/plugin"
)

func main() {
	os.Exit(plugin.Main("Weir CNI plugin: run by a container runtime, configured by /etc/cni/net.d"))
}
