// SPDX-License-Identifier: Apache-2.0

// Package service is the stage of the calculation that makes frontends and backends of Services and
// host ports, and decides which node answers neighbours for their addresses. What would take an
// address or a port of others is refused, and the objects' owners read why.
package service
