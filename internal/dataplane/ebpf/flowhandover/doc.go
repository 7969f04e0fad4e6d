// SPDX-License-Identifier: Apache-2.0

// Package flowhandover turns flows of the maps into entries of connection tracking, for a data
// plane that takes the place of the programs (ExportFlows), and tracked connections of a data plane
// before into flows (Importer). Exporting also lets programs pass their packets on, step by step
// and so that each packet is translated by one of the two. It reads pinned maps, so it works with
// and without a driver. When to import, and writing what is imported, is the driver's to say.
package flowhandover
