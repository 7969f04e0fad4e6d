// SPDX-License-Identifier: Apache-2.0

// Package page has the files of the page in the browser, built from web/ and embedded: one
// document, one script, one style sheet. Every view has a path of its own, at which the same
// document is served.
package page

import (
	"embed"
	"net/http"
	"path"
	"slices"
)

//go:generate ../../../hack/web.sh

//go:embed dist
var files embed.FS

// Views are the paths of the page's views, without the slash.
var Views = []string{"", "map", "flows", "policies", "nodes", "why"}

// types are the files by their names, with what they are.
var types = map[string]string{
	"index.html": "text/html; charset=utf-8",
	"page.js":    "text/javascript; charset=utf-8",
	"page.css":   "text/css; charset=utf-8",
	"icon.svg":   "image/svg+xml",
}

// Handler serves the page.
func Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := path.Clean(r.URL.Path)[1:]
		if slices.Contains(Views, name) {
			name = "index.html"
		}
		kind, known := types[name]
		text, err := files.ReadFile("dist/" + name)
		if r.Method != http.MethodGet && r.Method != http.MethodHead || !known || err != nil {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", kind)
		_, _ = w.Write(text) // whoever is gone needs no answer
	})
}
