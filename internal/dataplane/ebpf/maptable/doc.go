// SPDX-License-Identifier: Apache-2.0

// Package maptable keeps one map of the programs as it should be: a Table knows what its map holds
// and what it should hold, writes and deletes the difference, many entries by one call where the
// kernel can, and keeps what failed to try it again. What belongs into the map, and in which order
// maps change, is for others to say.
package maptable
