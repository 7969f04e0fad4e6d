// SPDX-License-Identifier: Apache-2.0

package flowhandover

import "log/slog"

// ExportEarly informs connection tracking of the flows whose packets the stack sees as long as
// programs carry them: those of the node's own processes. It is called before the other data
// plane's tables are written: with them connection tracking begins, and would take the side whose
// packet it sees first for the one that opened the connection.
func ExportEarly(root string, log *slog.Logger) error {
	g, err := openExporters(root, nil)
	defer g.close()
	if err != nil || len(g.families) == 0 {
		return err
	}
	n, err := g.export(exportSeen)
	if g.full {
		log.Warn("connection tracking is full to nine tenths (net.netfilter.nf_conntrack_max); further connections are not made known")
	}
	log.Info("connections of the node's processes were made known to connection tracking", "connections", n)
	return err
}
