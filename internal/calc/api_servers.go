// SPDX-License-Identifier: Apache-2.0

package calc

import "github.com/weir-net/weir/internal/model"

// apiService is the Service that the API servers stand behind: a node that does not reach them
// cannot learn that policy was mended.
var apiService = model.Name{Namespace: "default", Name: "kubernetes"}

// apiServerSlice is the EndpointSlice that API servers write themselves about apiService.
var apiServerSlice = model.Name{Namespace: "default", Name: "kubernetes"}

// apiServersOf returns the EndpointSlice that the API servers write about themselves, nil where
// there is none. Others of apiService are whoever's may write to its namespace.
func apiServersOf(c *model.Cluster) *model.EndpointSlice {
	if sl := c.Slices[apiServerSlice]; sl != nil && sl.Service == apiService {
		return sl
	}
	return nil
}

// isAuthoritative reports whether an EndpointSlice counts for its Service: of apiService the API
// servers' own does, and others only where these write none.
func isAuthoritative(c *model.Cluster, sl *model.EndpointSlice) bool {
	return sl.Service != apiService || sl.Name == apiServerSlice || apiServersOf(c) == nil
}
