// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"fmt"
	"io"
	"net/http"

	"github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/peerauth/trust"
	"github.com/weir-net/weir/internal/relay/tunnel"
)

// answers are an agent's: what it is asked, and of which node it is; /events is one line, and then
// nothing until who asked is gone.
func answers(node string, folder trust.Folder) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+tunnel.TokenPath, func(w http.ResponseWriter, _ *http.Request) {
		token, err := folder.Token()
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		io.WriteString(w, token)
	})
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, "status of %s", node) })
	for _, question := range []string{"why", "wireguardkey"} {
		mux.HandleFunc("POST /"+question, func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			fmt.Fprintf(w, "%s of %s: %s", question, node, body)
			if err != nil {
				fmt.Fprint(w, err)
			}
		})
	}
	mux.HandleFunc("GET /bgproutes", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "routes of %s: %s", node, r.URL.RawQuery) })
	mux.HandleFunc("GET /events", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "events of %s: %s\n", node, r.URL.RawQuery)
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(wire.UnknownQuestion, "true")
		http.Error(w, "no such question", http.StatusNotFound)
	})
	return mux
}
