// SPDX-License-Identifier: Apache-2.0

// Package ui holds the tests of the page in a real browser, against a server with recorded data:
// each view, live changes, filters, who is refused, tables and maps as large as they may be, both
// widths, and accessibility by axe-core.
package ui
