// SPDX-License-Identifier: Apache-2.0

// Package port knows the ports that rules of policies ask for: by number or by the names that pods
// and Services have for them, as spans that are merged, split and written as prefixes. Who calls a
// port by a name is for those who know the peers to say.
package port
