// SPDX-License-Identifier: Apache-2.0

// Package table has what every stage of the calculation makes its tables with: tables under work
// that note whether anything differs, numbers that depend on texts alone, and the division of a
// bounded table among the namespaces that ask for entries.
package table
