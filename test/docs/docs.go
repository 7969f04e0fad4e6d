// SPDX-License-Identifier: Apache-2.0

// Package docs holds tests of the documents: links and anchors lead somewhere, commands and files
// that are named exist, every page is listed. The pages of docs/reference that come from code are
// generated here, after everything that they are generated from.
package docs

//go:generate go -C ../.. run ./hack/reference
