// SPDX-License-Identifier: Apache-2.0

// Package counters reads what programs count: dropped packets by reason and rule, packets that they
// answered by themselves, and single counters of all CPUs. The counts begin when the maps are made.
package counters
