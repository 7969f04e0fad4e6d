// SPDX-License-Identifier: Apache-2.0

package cluster

import "github.com/weir-net/weir/internal/model"

// APIService is the Service that the API servers are behind: a node that does not reach them
// cannot learn that policy was fixed.
var APIService = model.Name{Namespace: "default", Name: "kubernetes"}

// APIServerSlice is the EndpointSlice that API servers write themselves about APIService.
var APIServerSlice = model.Name{Namespace: "default", Name: "kubernetes"}

// APIServersOf returns the EndpointSlice that the API servers write about themselves, nil where
// there is none. Others of APIService are whoever's may write to its namespace.
func APIServersOf(c *model.Cluster) *model.EndpointSlice {
	if sl := c.Slices[APIServerSlice]; sl != nil && sl.Service == APIService {
		return sl
	}
	return nil
}

// IsAuthoritative reports whether an EndpointSlice counts for its Service: of APIService the API
// servers' own does, and others only where these write none.
func IsAuthoritative(c *model.Cluster, sl *model.EndpointSlice) bool {
	return sl.Service != APIService || sl.Name == APIServerSlice || APIServersOf(c) == nil
}
