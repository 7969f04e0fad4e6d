// SPDX-License-Identifier: Apache-2.0

// Package tables writes a state into maps: of each map what differs from what it holds, and a
// change of policy by a transition (policy_*), so that no packet is allowed which both the policy
// before and the one after deny. It also reads a state back, and imports connections of another
// data plane into the flow maps. When to write, and when flows are evaluated again, is for others.
package tables
